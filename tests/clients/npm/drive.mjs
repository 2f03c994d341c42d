// OpenAI's npm client against the server at argv[2]: speak argv[3] (streamed), then chat (streamed, written and spoken).
// Prints one JSON object: bytes and pieces of speech, text, transcript and bytes of the chat, and the error of a refusal.

import OpenAI from "openai";

const [, , url, text] = process.argv;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });

const speech = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input: text, response_format: "pcm" });
const pieces = [];
for await (const piece of speech.body) pieces.push(piece);

const stream = await client.chat.completions.create({
  model: "voice",
  messages: [{ role: "user", content: "Say hello." }],
  modalities: ["text", "audio"],
  audio: { voice: "alloy", format: "pcm16" },
  max_tokens: 16,
  temperature: 0,
  stream: true,
});
const chat = { text: "", transcript: "", bytes: 0, finish: null };
for await (const { choices } of stream) {
  const [choice] = choices;
  chat.text += choice?.delta.content ?? "";
  chat.transcript += choice?.delta.audio?.transcript ?? "";
  chat.bytes += Buffer.from(choice?.delta.audio?.data ?? "", "base64").length;
  chat.finish = choice?.finish_reason ?? chat.finish;
}

const refusal = await client.audio.speech
  .create({ model: "tts-1", voice: "alloy", input: " " })
  .catch((error) => ({ name: error.constructor.name, status: error.status, param: error.param }));

const pcm = Buffer.concat(pieces);
console.log(JSON.stringify({ speech: { pcm: pcm.toString("base64"), pieces: pieces.length }, chat, refusal }));
