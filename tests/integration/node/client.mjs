// The official Node SDK against TIERLINE_URL: `node client.mjs SCENARIO` prints what the SDK made of it, as JSON.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.TIERLINE_URL,
  apiKey: "any",
  maxRetries: Number(process.env.MAX_RETRIES ?? 0),
  timeout: 10_000,
});
const ask = { model: "chat", messages: [{ role: "user", content: "hi there" }] };
const weather = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};

const scenarios = {
  async complete() {
    const { data, response, request_id } = await client.chat.completions.create(ask).withResponse();
    return {
      text: data.choices[0].message.content,
      finish: data.choices[0].finish_reason,
      usage: data.usage,
      requestId: request_id,
      path: response.headers.get("x-tierline-path"),
    };
  },

  async completions() {
    const prompt = ["one", "two"];
    const whole = await client.completions.create({ model: "chat", prompt });
    const stream = await client.completions.create({ model: "chat", prompt: "one", stream: true });
    let streamed = "";
    for await (const chunk of stream) streamed += chunk.choices[0]?.text ?? "";
    return { texts: whole.choices.map((one) => [one.index, one.text]), streamed };
  },

  async embeddings() {
    const { data, model, usage } = await client.embeddings.create({ model: "auto", input: ["a text", "another"] });
    return { lengths: data.map((one) => one.embedding.length), first: data[0].embedding[0], model, usage };
  },

  async stream() {
    const stream = await client.chat.completions.create({
      ...ask,
      stream: true,
      stream_options: { include_usage: true },
    });
    const found = { text: "", finish: null, usage: null, ids: [] };
    for await (const chunk of stream) {
      found.text += chunk.choices[0]?.delta.content ?? "";
      found.finish = chunk.choices[0]?.finish_reason ?? found.finish;
      found.usage = chunk.usage ?? found.usage;
      if (!found.ids.includes(chunk.id)) found.ids.push(chunk.id);
    }
    return found;
  },

  async tools() {
    const stream = client.chat.completions.stream({ ...ask, tools: [weather] });
    const { choices } = await stream.finalChatCompletion();
    return { finish: choices[0].finish_reason, calls: choices[0].message.tool_calls.map((call) => call.function) };
  },

  async whole() {
    const { data, response } = await client.chat.completions.create(ask).withResponse();
    const { _request_id, ...completion } = data;
    return { completion, path: response.headers.get("x-tierline-path") };
  },

  async wholeStream() {
    const stream = client.chat.completions.stream({ ...ask, stream_options: { include_usage: true } });
    return { completion: await stream.finalChatCompletion() };
  },

  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids, one: await client.models.retrieve("chat") };
  },

  async unknownModel() {
    return failure(() => client.chat.completions.create({ ...ask, model: "no-such-model" }));
  },

  async askOnce() {
    return failure(() => client.chat.completions.create(ask));
  },

  async leave() {
    const stream = await client.chat.completions.create({ ...ask, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break;
    }
    return {};
  },

  async broken() {
    return failure(async () => {
      const stream = await client.chat.completions.create({ ...ask, stream: true });
      for await (const _ of stream);
    });
  },
};

async function failure(work) {
  try {
    await work();
    return { class: null };
  } catch (error) {
    const { status, code, type, message } = error;
    return { class: error.constructor.name, status, code, type, message, requestId: error.requestID };
  }
}

console.log(JSON.stringify(await scenarios[process.argv[2]]()));
