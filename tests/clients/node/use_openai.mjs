// openai-node, versions 6 and 7 alike (PACKAGE): chat completions, responses, embeddings, models.
import { FLAKY, MODEL, NOBODY, PARAMETERS, REFUSED, URL_V1, prompt, run, user } from "./scenarios.mjs";

const { default: OpenAI } = await import(process.env.PACKAGE);
const options = { baseURL: URL_V1, apiKey: "any", maxRetries: 0, timeout: 20_000 };
const client = new OpenAI(options);
const described = { name: "weather", description: "The weather in a city", parameters: PARAMETERS };
const weather = { type: "function", function: described };
const CITY = {
  type: "object",
  properties: { name: { type: "string" }, country: { type: "string" } },
  required: ["name", "country"],
  additionalProperties: false,
};

async function retried(name) {
  const patient = new OpenAI({ ...options, maxRetries: 2 });
  const got = await patient.chat.completions.create({ model: FLAKY, messages: user(name) });
  return { text: got.choices[0].message.content };
}

async function answered(messages, called) {
  const [call] = called.tool_calls;
  const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
  const got = await client.chat.completions.create({
    model: MODEL,
    messages: [...messages, called, result],
    tools: [weather],
  });
  return {
    calls: [[call.function.name, JSON.parse(call.function.arguments)]],
    text: got.choices[0].message.content,
  };
}

async function plain() {
  const got = await client.chat.completions.create({ model: MODEL, messages: user("plain") });
  return { text: got.choices[0].message.content, out: got.usage.completion_tokens };
}

await run({
  plain,
  again: plain,

  async stream() {
    const events = client.chat.completions.stream({
      model: MODEL,
      messages: user("stream"),
      stream_options: { include_usage: true },
    });
    const got = await events.finalChatCompletion();
    return { text: got.choices[0].message.content, out: got.usage.completion_tokens };
  },

  async hard() {
    const events = client.chat.completions.stream({ model: MODEL, messages: user("hard") });
    return { text: await events.finalContent() };
  },

  async tools() {
    const messages = user("tools");
    const got = await client.chat.completions.create({ model: MODEL, messages, tools: [weather] });
    return answered(messages, got.choices[0].message);
  },

  async tools_stream() {
    const messages = user("tools_stream");
    const events = client.chat.completions.stream({ model: MODEL, messages, tools: [weather] });
    return answered(messages, await events.finalMessage());
  },

  async structured() {
    const got = await client.chat.completions.create({
      model: MODEL,
      messages: user("structured"),
      response_format: { type: "json_schema", json_schema: { name: "City", schema: CITY, strict: true } },
    });
    return JSON.parse(got.choices[0].message.content);
  },

  async responses() {
    const got = await client.responses.create({ model: MODEL, input: prompt("responses") });
    return { text: got.output_text, out: got.usage.output_tokens };
  },

  async responses_stream() {
    const got = await client.responses.stream({ model: MODEL, input: prompt("responses_stream") }).finalResponse();
    return { text: got.output_text, out: got.usage.output_tokens };
  },

  async responses_tools() {
    const tools = [{ type: "function", strict: false, ...described }];
    const called = await client.responses.create({ model: MODEL, input: prompt("responses_tools"), tools });
    const call = called.output.find((item) => item.type === "function_call");
    const got = await client.responses.create({
      model: MODEL,
      input: [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }],
      previous_response_id: called.id,
      tools,
    });
    return { calls: [[call.name, JSON.parse(call.arguments)]], text: got.output_text };
  },

  async responses_structured() {
    const got = await client.responses.create({
      model: MODEL,
      input: prompt("responses_structured"),
      text: { format: { type: "json_schema", name: "City", schema: CITY, strict: true } },
    });
    return JSON.parse(got.output_text);
  },

  unknown_model: () => client.chat.completions.create({ model: NOBODY, messages: user("unknown_model") }),
  responses_unknown_model: () => client.responses.create({ model: NOBODY, input: prompt("unknown_model") }),
  bad_request: () => client.chat.completions.create({ model: MODEL, messages: "no list" }),

  busy: () => retried("busy"),
  limited: () => retried("limited"),
  overloaded: () => retried("overloaded"),
  refused: () => client.chat.completions.create({ model: REFUSED, messages: user("refused") }),
  refused_stream: () =>
    client.chat.completions.create({ model: REFUSED, messages: user("refused_stream"), stream: true }),

  async impatient() {
    const hurried = new OpenAI({ ...options, maxRetries: 2, timeout: 4000 });
    const got = await hurried.chat.completions.create({ model: FLAKY, messages: user("impatient") });
    return { text: got.choices[0].message.content };
  },

  slow: () => client.chat.completions.create({ model: MODEL, messages: user("slow") }, { timeout: 1000 }),

  async leave() {
    const events = await client.chat.completions.create({ model: MODEL, messages: user("leave"), stream: true });
    for await (const chunk of events) {
      if (chunk.choices[0]?.delta.content) return { text: chunk.choices[0].delta.content };
    }
  },

  async embeddings() {
    const got = await client.embeddings.create({ model: MODEL, input: ["one text", "another"] });
    return { count: got.data.length, width: got.data[0].embedding.length };
  },

  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids };
  },
});
