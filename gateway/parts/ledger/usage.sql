-- What gateway/parts/ledger/usage.py asks, by name; it says what comes of each. Money is in whole nanodollars, which add up exactly.

-- name: used
SELECT timezone($zone, to_timestamp(started))::DATE AS day, started, if(arm = '{adjustment}', path, 'usage') AS entry,
    coalesce(tenant, '') AS tenant, coalesce(team, '') AS team, {owner} AS owner, coalesce("key", '') AS "key",
    coalesce("user", '') AS "user",
    coalesce(session, '') AS session, coalesce(surface, '') AS surface, coalesce(tier, '') AS tier, coalesce(model, '') AS model,
    coalesce(tokens_in, 0) AS tokens_in, coalesce(tokens_out, 0) AS tokens_out, starts_with(path, 'cache') AS hit,
    round(coalesce(charged_usd, cost_usd, 0) * 1e9)::HUGEINT AS charged, round(coalesce(list_usd, 0) * 1e9)::HUGEINT AS list,
    round(coalesce(wasted_usd, 0) * 1e9)::HUGEINT AS wasted, coalesce(cost_unknown, false) AS unpriced,
    charged_usd IS NULL AND coalesce(cost_usd, 0) > 0 AS older, accounts, request_id, hops,
    coalesce(backend, '') AS backend, round(coalesce(cost_usd, 0) * 1e9)::HUGEINT AS cost, calls, 1 AS requests
FROM requests_all WHERE arm IS DISTINCT FROM '{shadow}' AND entry_ms >= $since * 1000 AND started >= $since AND started < $until

-- name: by_call
SELECT * EXCLUDE (calls, tokens_in, tokens_out, charged, wasted, cost),
    tokens_in - coalesce(list_sum(list_transform({paid}, lambda c: c.tokens_in)), 0)::BIGINT AS tokens_in,
    tokens_out - coalesce(list_sum(list_transform({paid}, lambda c: c.tokens_out)), 0)::BIGINT AS tokens_out,
    charged - coalesce(list_sum(list_transform({paid}, lambda c: {nano})), 0)::HUGEINT AS charged,
    wasted - coalesce(list_sum(list_transform(list_filter(calls, lambda c: c.wasted), lambda c: {nano})), 0)::HUGEINT AS wasted,
    cost - coalesce(list_sum(list_transform(calls, lambda c: {nano})), 0)::HUGEINT AS cost, 0 AS calls_
FROM ({used})
UNION ALL BY NAME
SELECT * EXCLUDE (c, tier, model, backend, tokens_in, tokens_out, charged, list, wasted, cost, hit, unpriced, older, requests),
    coalesce(c.tier, '') AS tier, coalesce(c.model, '') AS model, coalesce(c.backend, '') AS backend, if({is_paid}, c.tokens_in, 0) AS tokens_in,
    if({is_paid}, c.tokens_out, 0) AS tokens_out, if({is_paid}, {nano}, 0)::HUGEINT AS charged, 0::HUGEINT AS list,
    if(c.wasted, {nano}, 0)::HUGEINT AS wasted, {nano} AS cost, false AS hit, false AS unpriced, false AS older, 0 AS requests, 1 AS calls_
FROM (SELECT * EXCLUDE (calls), unnest(list_filter(calls, lambda c: c.backend <> '')) AS c FROM ({used}))

-- name: by_request
SELECT * EXCLUDE (calls), coalesce(len(list_filter(calls, lambda c: c.backend <> '')), 0) AS calls_ FROM ({used})

-- name: lines
SELECT {by}entry, coalesce(sum(requests) FILTER (entry = 'usage'), 0)::BIGINT AS requests, sum(calls_)::BIGINT AS calls,
    sum(tokens_in)::BIGINT AS tokens_in, sum(tokens_out)::BIGINT AS tokens_out,
    (sum(charged) / 1000000000)::DECIMAL(18, 9) AS charged_usd, (sum(cost) / 1000000000)::DECIMAL(18, 9) AS cost_usd,
    (sum(list) / 1000000000)::DECIMAL(18, 9) AS list_usd, (sum(wasted) / 1000000000)::DECIMAL(18, 9) AS wasted_usd,
    count(*) FILTER (hit) AS hits, count(*) FILTER (unpriced) AS unpriced, count(*) FILTER (older) AS older,
    coalesce(string_agg(DISTINCT surface, ', ' ORDER BY surface) FILTER (surface <> ''), '') AS surfaces
FROM ({used}) WHERE {where} GROUP BY {by}entry ORDER BY {first}charged_usd DESC, requests DESC, {by}entry

-- name: adjustments
SELECT started, entry, accounts[1] AS account, charged / 1e9 AS usd, json_extract_string(hops, '$[0].attributes.author') AS author,
    json_extract_string(hops, '$[0].attributes.reason') AS reason
FROM ({used}) WHERE entry <> 'usage' ORDER BY started

-- name: coverage
SELECT min(started) AS first_s, max(started) AS last_s, count(*) AS records, max(ordinal) - min(ordinal) + 1 - count(*) AS missing
FROM requests_all

-- name: charges
SELECT account, sum(charged)::HUGEINT AS charged
FROM (SELECT unnest(accounts) AS account, round(charged_usd * 1e9)::HUGEINT AS charged FROM requests_all) GROUP BY account

-- name: focus
SELECT timezone('UTC', timezone($zone, day::TIMESTAMP)) AS ChargePeriodStart,
    timezone('UTC', timezone($zone, (day + 1)::TIMESTAMP)) AS ChargePeriodEnd,
    timezone('UTC', timezone($zone, date_trunc('month', day)::TIMESTAMP)) AS BillingPeriodStart,
    timezone('UTC', timezone($zone, (date_trunc('month', day) + INTERVAL 1 MONTH)::TIMESTAMP)) AS BillingPeriodEnd,
    if(tenant = '', 'default', tenant) AS BillingAccountId, nullif(tenant, '') AS BillingAccountName, 'Tenant' AS BillingAccountType,
    nullif(team, '') AS SubAccountId, nullif(team, '') AS SubAccountName, if(team = '', NULL, 'Team') AS SubAccountType,
    if(usage, charged_usd, 0) AS BilledCost, if(usage, charged_usd, 0) AS ContractedCost, if(usage, charged_usd, 0) AS EffectiveCost,
    if(usage, charged_usd + list_usd, 0) AS ListCost, 'USD' AS BillingCurrency,
    if(usage, 'Usage', 'Adjustment') AS ChargeCategory, NULL::VARCHAR AS ChargeClass,
    if(usage, requests || ' requests, ' || calls || ' calls', 'Budget: ' || entry) AS ChargeDescription, if(usage, 'Usage-Based', 'One-Time') AS ChargeFrequency,
    if(usage, tokens_in + tokens_out, NULL) AS ConsumedQuantity, if(usage, 'Tokens', NULL) AS ConsumedUnit,
    if(usage, tokens_in + tokens_out, NULL) AS PricingQuantity, if(usage, 'Tokens', NULL) AS PricingUnit, if(usage, 'Standard', NULL) AS PricingCategory,
    'Tierline' AS ProviderName, 'Tierline' AS PublisherName, 'Tierline' AS InvoiceIssuerName,
    nullif("key", '') AS ResourceId, nullif("key", '') AS ResourceName, if("key" = '', NULL, 'API key') AS ResourceType,
    'AI and Machine Learning' AS ServiceCategory, 'Generative AI' AS ServiceSubcategory, if(surface = '', 'Tierline', surface) AS ServiceName,
    json_object('team', team, 'key', "key", 'surface', surface, 'tier', tier, 'model', model)::VARCHAR AS Tags,
    if(usage, requests, NULL) AS x_Requests, if(usage, tokens_in, NULL) AS x_TokensIn, if(usage, tokens_out, NULL) AS x_TokensOut,
    if(usage, wasted_usd, NULL) AS x_WastedCost, if(usage, unpriced, NULL) AS x_RequestsOfUnknownPrice,
    if(usage, NULL, charged_usd) AS x_BudgetAdjustment
FROM (SELECT *, entry = 'usage' AS usage FROM ({lines})) WHERE surface <> '' OR charged_usd <> 0 ORDER BY ChargePeriodStart, BilledCost DESC
