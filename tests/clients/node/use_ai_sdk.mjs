// The Vercel AI SDK, by its providers of OpenAI (/responses), compatible services and Anthropic (/messages): PROVIDER.
import { generateText, embedMany, Output, stepCountIs, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
import { FLAKY, MODEL, NOBODY, REFUSED, URL_V1, prompt, run } from "./scenarios.mjs";

const options = { name: "tierline", baseURL: URL_V1, apiKey: "any" };
const providers = {
  openai: () => createOpenAI(options),
  compatible: () => createOpenAICompatible({ ...options, includeUsage: true, supportsStructuredOutputs: true }),
  anthropic: () => createAnthropic(options),
};
const provider = providers[process.env.PROVIDER]();
const ask = (name, more = {}) => ({ model: provider(MODEL), prompt: prompt(name), maxRetries: 0, ...more });

function weather(calls) {
  const description = "The weather in a city";
  const inputSchema = z.object({ city: z.string() });
  const execute = async (input) => {
    calls.push(["weather", input]);
    return "sunny";
  };
  return { tools: { weather: tool({ description, inputSchema, execute }) }, stopWhen: stepCountIs(3) };
}

// The SDK gives a stream's error to a callback, and only says that there is no output.
async function streamed(name, more = {}) {
  let failure;
  const got = streamText(ask(name, { onError: ({ error }) => (failure = error), ...more }));
  let text = "";
  for await (const part of got.textStream) text += part;
  if (failure) throw failure;
  return { text, out: (await got.usage).outputTokens };
}

async function retried(name) {
  const got = await generateText(ask(name, { model: provider(FLAKY), maxRetries: 2 }));
  return { text: got.text };
}

async function plain() {
  const got = await generateText(ask("plain"));
  return { text: got.text, out: got.usage.outputTokens };
}

await run({
  plain,
  again: plain,
  stream: () => streamed("stream"),

  async hard() {
    return { text: (await streamed("hard")).text };
  },

  async tools() {
    const calls = [];
    const got = await generateText(ask("tools", weather(calls)));
    return { calls, text: got.text };
  },

  async tools_stream() {
    const calls = [];
    const { text } = await streamed("tools_stream", weather(calls));
    return { calls, text };
  },

  async structured() {
    const schema = z.object({ name: z.string(), country: z.string() });
    const got = await generateText(ask("structured", { output: Output.object({ schema }) }));
    return got.output;
  },

  unknown_model: () => generateText(ask("unknown_model", { model: provider(NOBODY) })),
  unknown_model_stream: () => streamed("unknown_model", { model: provider(NOBODY) }),

  busy: () => retried("busy"),
  limited: () => retried("limited"),
  overloaded: () => retried("overloaded"),
  refused: () => generateText(ask("refused", { model: provider(REFUSED) })),
  refused_stream: () => streamed("refused_stream", { model: provider(REFUSED) }),

  slow: () => generateText(ask("slow", { abortSignal: AbortSignal.timeout(1000) })),

  async leave() {
    const abort = new AbortController();
    const got = streamText(ask("leave", { abortSignal: abort.signal }));
    for await (const part of got.textStream) {
      abort.abort();
      return { text: part };
    }
  },

  async embeddings() {
    const got = await embedMany({
      model: provider.embeddingModel(MODEL),
      values: ["one text", "another"],
      maxRetries: 0,
    });
    return { count: got.embeddings.length, width: got.embeddings[0].length };
  },
});
