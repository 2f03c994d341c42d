// The page: what the person does becomes requests, one at a time. In: the form, keys, the microphone. Out: turns.
// A new wish stops the answer that is still coming: whoever talks or types has the floor.

import { chat, readAloud, writeDown } from "/page/answers.js";
import { Api } from "/page/api.js";
import { Microphone } from "/page/microphone.js";
import { Output } from "/page/output.js";
import { offer, rememberSettings, settings } from "/page/settings.js";
import { showAway, showOverview } from "/page/stages.js";
import { Turn, clearTurns } from "/page/turns.js";
import { drawWave } from "/page/wave.js";

const POLL_MS = { working: 1000, idle: 2000 };
const WELCOME = {
  chat: "Type a message, or press Talk and speak. The answer is read out while it is still being written.",
  speech: "Type a text and hear it.",
  transcription: "Press Talk and speak, or choose a file, and read what was said.",
};
const PLACEHOLDERS = { chat: "Type a message", speech: "Type a text to read aloud", transcription: "" };
const get = (id) => document.getElementById(id);

const api = new Api(() => settings.apiKey);
const microphone = new Microphone({ began: onVoice, ended: onSpokenTurn });
const conversation = []; // messages of the chat so far, as the API takes them
let server = null; // the overview that was current when the page was laid out
let output = null;
let isOpening = false; // the browser asks the person, which takes a while
let work = null; // {abort: AbortController, done: Promise} of the answer that is coming

const mode = () => get("modes").querySelector("input:checked")?.value ?? "";

// ---- wishes

/** Runs one answer after the last one has let go. */
async function begin(answer) {
  while (work !== null) await stop();
  const abort = new AbortController();
  output.open();
  const done = answer(abort.signal).finally(() => {
    if (work?.abort === abort) work = null;
    showWork();
  });
  work = { abort, done };
  showWork();
}

/** Stops what is coming and what is heard; resolves when it has let go. */
async function stop() {
  const current = work;
  current?.abort.abort();
  await current?.done;
}

function onSubmit(event) {
  event.preventDefault();
  const text = get("text").value.trim();
  if (!server || !text || mode() === "transcription") return;
  get("text").value = "";
  grow();
  new Turn("user", "You").text = text;
  if (mode() === "speech") return begin((signal) => readAloud({ api, output, server, text, signal }));
  return converse({ role: "user", content: text });
}

function converse(message) {
  return begin(async (signal) => {
    conversation.push(message);
    const said = await chat({ api, output, server, messages: [...conversation], signal });
    if (said) conversation.push({ role: "assistant", content: said });
    else conversation.splice(conversation.indexOf(message), 1); // nothing came of it
  });
}

/** Speech instead of typing: the model hears the sound itself; what was said is written down for the next turns. */
function converseSpoken(wav) {
  const turn = new Turn("user", "You");
  const blob = new Blob([wav], { type: "audio/wav" });
  turn.keep(blob, "Hear what you said");
  const message = { role: "user", content: [{ type: "input_audio", input_audio: { data: base64Of(wav), format: "wav" } }] };
  return converse(message).then(() => hasTask("transcription") && caption(turn, message, blob));
}

async function caption(turn, message, blob) {
  await work?.done; // the answer comes first
  const text = await api.transcription(server.model, blob, "said.wav").catch(() => "");
  if (!text.trim()) return;
  turn.text = text.trim();
  message.content = text.trim();
}

function transcribe(file, name) {
  const turn = new Turn("user", "You");
  turn.text = name;
  turn.keep(file, "Hear it");
  return begin((signal) => writeDown({ api, server, file, name, signal }));
}

// ---- microphone

async function onTalk() {
  if (microphone.isOpen) return closeMicrophone(microphone.take());
  if (isOpening) return;
  isOpening = true;
  try {
    await stop();
    await microphone.open();
    hint("Speak now; a pause ends your turn");
  } catch (error) {
    microphone.close();
    hint(error.message);
  }
  isOpening = false;
  showMicrophone();
}

function onVoice() {
  hint("Listening");
  if (work) stop(); // barge in
}

function onSpokenTurn(wav) {
  if (settings.keepsListening && mode() === "chat") return heard(wav);
  closeMicrophone(wav);
}

function closeMicrophone(wav) {
  microphone.close();
  showMicrophone();
  if (wav) heard(wav);
  else hint("Nothing was heard.");
}

function heard(wav) {
  hint("");
  if (mode() === "transcription") transcribe(new Blob([wav], { type: "audio/wav" }), "recording.wav");
  else converseSpoken(wav);
}

function showMicrophone() {
  get("talk").setAttribute("aria-pressed", String(microphone.isOpen));
  get("talk-label").textContent = microphone.isOpen ? "Done" : "Talk";
  drawWave(soundNow);
}

// ---- what is shown

function soundNow() {
  if (work && output?.analyser) return output.analyser;
  return microphone.isOpen ? microphone.analyser : null;
}

function showWork() {
  get("stop").disabled = work === null;
  drawWave(soundNow);
}

function showMode() {
  const [isChat, isWriting] = [mode() === "chat", mode() === "transcription"];
  get("text").hidden = get("send").hidden = isWriting || mode() === "";
  get("text").placeholder = PLACEHOLDERS[mode()] ?? "";
  get("text-label").textContent = PLACEHOLDERS[mode()] || "Message";
  get("send").textContent = isChat ? "Send" : "Read aloud";
  get("talk").hidden = !(isWriting || (isChat && server.tasks.chat.inputs.includes("audio")));
  get("file-label").hidden = !isWriting;
  get("welcome-text").textContent = WELCOME[mode()] ?? `This page has nothing for what ${server.model} does; its API does.`;
  if (isChat && get("talk").hidden) get("welcome-text").textContent = "Type a message.";
  grow();
}

function hasTask(name) {
  return name in server.tasks;
}

function layOut(overview) {
  const isSame = server && JSON.stringify([server.model, server.tasks]) === JSON.stringify([overview.model, overview.tasks]);
  if (isSame) return;
  server = overview;
  output = new Output(server.sample_rate);
  get("model").textContent = document.title = server.model;
  document.title = `${server.model} · antiphon`;
  offer(server);
  const offered = [...get("modes").querySelectorAll("input")].filter((input) => {
    input.parentElement.hidden = !hasTask(input.value);
    input.checked = false;
    return hasTask(input.value);
  });
  if (offered.length > 0) offered[0].checked = true;
  get("modes").hidden = offered.length < 2;
  showMode();
}

function hint(words) {
  get("hint").textContent = words;
}

/** The field is as high as its text, also where CSS cannot do it. */
function grow() {
  if (CSS.supports("field-sizing", "content")) return;
  const field = get("text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

async function poll() {
  if (!document.hidden) {
    try {
      const overview = await api.overview(AbortSignal.timeout(5000));
      layOut(overview);
      showOverview(overview);
    } catch {
      showAway();
    }
  }
  setTimeout(poll, work ? POLL_MS.working : POLL_MS.idle);
}

function base64Of(bytes) {
  let letters = "";
  for (let at = 0; at < bytes.length; at += 0x8000) letters += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(letters);
}

// ---- wiring

get("composer").addEventListener("submit", onSubmit);
get("text").addEventListener("input", grow);
get("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) onSubmit(event);
});
get("modes").addEventListener("change", showMode);
get("talk").addEventListener("click", onTalk);
get("stop").addEventListener("click", stop);
get("file").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  if (file) transcribe(file, file.name);
  target.value = "";
});
get("forget").addEventListener("click", async () => {
  await stop();
  conversation.length = 0;
  clearTurns();
});
get("show-details").addEventListener("click", ({ target }) => {
  const isShown = get("details").classList.toggle("shown");
  target.setAttribute("aria-expanded", String(isShown));
  target.textContent = isShown ? "Close" : "Settings";
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  stop();
  microphone.close();
  showMicrophone();
  hint("");
});
rememberSettings();
poll();
