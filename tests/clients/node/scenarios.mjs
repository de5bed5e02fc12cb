// What the Node scripts share: see ../python/scenarios.py.
export const URL_V1 = `${process.env.TIERLINE_URL}/v1`;
export const [MODEL, FLAKY, REFUSED, NOBODY] = ["chat", "flaky", "refused", "no-such-model"];
export const prompt = (name) => `${name}-task for ${process.env.CLIENT}`;
export const user = (name) => [{ role: "user", content: prompt(name) }];
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

// Calls each function, and prints one JSON object of what came of all.
export async function run(functions) {
  const found = {};
  for (const [name, call] of Object.entries(functions)) found[name] = await outcome(call);
  console.log(JSON.stringify(found));
}

async function outcome(call) {
  try {
    return { value: (await call()) ?? null };
  } catch (error) {
    const kinds = [];
    for (let kind = error.constructor; kind?.name; kind = Object.getPrototypeOf(kind)) kinds.push(kind.name);
    const status = error.status ?? error.statusCode ?? null;
    const retry_after = error.headers?.get?.("retry-after") ?? error.responseHeaders?.["retry-after"] ?? null;
    const { name, message, stack: trace } = error;
    return { raised: kinds[0], kinds: [name, ...kinds], status, retry_after, message, trace };
  }
}
