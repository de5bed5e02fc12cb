-- What gateway/parts/ledger/quality.py asks, by name; it says what comes of each.

-- name: labels
SELECT * FROM labels WHERE ($surface IS NULL OR surface = $surface) AND entry_ms >= $from_ms ORDER BY judged_at

-- name: scores
SELECT surface, tenant, request_id, score FROM feedback WHERE ($surface IS NULL OR surface = $surface) AND entry_ms >= $from_ms

-- name: rated
SELECT r.surface, r.tenant, r.request_id, r.tier, r.model, r.confidence, r.given.difficulty.in_domain AS in_domain,
    r.given.difficulty.p_right AS p_right, json_extract_string(b.basis, '$.ladder[*]') AS ladder, f.score{verified}
FROM requests r JOIN feedback f USING (tenant, request_id) LEFT JOIN bases b ON b.id = r.basis
WHERE ($surface IS NULL OR r.surface = $surface) AND r.entry_ms >= $from_ms AND r.status = 200 AND r.tier <> '' AND r.path NOT LIKE 'cache-%'

-- name: verified
, r.started, r.session, r.kind,
    list_filter(r.calls, lambda one: NOT one.wasted AND one.verifier <> '')[1].verifier AS verifier,
    list_filter(r.calls, lambda one: NOT one.wasted AND one.verifier <> '')[1].verified AS verified

-- name: shadows
SELECT surface, candidate, conversation, shadow.adequate AS new, served.adequate AS present,
    CASE better WHEN 'shadow' THEN 'new' WHEN 'served' THEN 'present' ELSE '' END AS better
FROM shadow_labels WHERE ($surface IS NULL OR surface = $surface) AND entry_ms >= $from_ms ORDER BY judged_at

-- name: opinions
SELECT surface, tenant, request_id, in_domain, p_right, struct_pack(tier := small.tier, model := small.model, served := small.served, adequate := small.adequate, confidence := small.confidence) AS small,
    struct_pack(tier := strong.tier, model := strong.model, served := strong.served, adequate := strong.adequate, confidence := strong.confidence) AS strong
FROM labels WHERE ($surface IS NULL OR surface = $surface) AND entry_ms >= $from_ms ORDER BY judged_at

-- name: ladders
SELECT surface, json_extract_string(b.basis, '$.ladder[*]') AS ladder
FROM (SELECT surface, arg_max(basis, entry_ms) AS basis FROM requests
    WHERE ($surface IS NULL OR surface = $surface) AND entry_ms >= $from_ms AND basis IS NOT NULL GROUP BY surface) r JOIN bases b ON b.id = r.basis

-- name: holdout
SELECT tenant, request_id, d.surface, d.holdout, score FROM (
    SELECT tenant, request_id, max(score) AS score FROM (
        SELECT tenant, request_id, score FROM feedback_all WHERE entry_ms >= $from_ms
            QUALIFY row_number() OVER (PARTITION BY tenant, request_id ORDER BY entry_ms DESC, entry_seq DESC) = 1
        UNION ALL SELECT tenant, request_id, NULL FROM labels WHERE entry_ms >= $from_ms
    ) GROUP BY tenant, request_id
) JOIN drawn d ON hash(tenant, request_id) = d.key

-- name: lengths
SELECT surface, avg(answer_tokens_in) AS tokens_in, avg(answer_tokens_out) AS tokens_out FROM requests
WHERE ($surface IS NULL OR surface = $surface) AND entry_ms >= $from_ms AND status = 200 AND tier <> '' AND path NOT LIKE 'cache-%'
    AND answer_tokens_in IS NOT NULL GROUP BY surface
