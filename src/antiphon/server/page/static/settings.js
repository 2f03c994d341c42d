// What the person has chosen. In: the form. Out: plain values for requests. The API key is kept in this tab only.
// Does not know: requests.

const KEY = "antiphon-api-key";
const NAMES = { pcm: "pcm: plays at once", wav: "wav: plays at once", mp3: "mp3", aac: "aac", opus: "opus", flac: "flac" };
const field = (id) => document.getElementById(id);

export const settings = {
  get apiKey() {
    return field("api-key").value.trim();
  },
  get voice() {
    return field("voice").value;
  },
  get format() {
    return field("format").value || "pcm";
  },
  get speed() {
    return Number(field("speed").value);
  },
  get isSpoken() {
    return !field("spoken-field").hidden && field("spoken").checked;
  },
  get keepsListening() {
    return field("keep-listening").checked;
  },
  /** {max_tokens, temperature}, as far as they are given. */
  get sampling() {
    const numbers = { max_tokens: field("max-tokens").value, temperature: field("temperature").value };
    const given = Object.entries(numbers).filter(([, value]) => value !== "");
    return Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
  },
};

/** Fills the lists, and hides what this server has no use for. */
export function offer({ voices, formats, tasks }) {
  fill(field("voice"), voices.map(({ name, language }) => [name, language ? `${name} (${language})` : name]));
  const first = Object.keys(NAMES).filter((name) => formats.includes(name));
  fill(field("format"), first.map((name) => [name, NAMES[name]]));
  const speaks = Boolean(tasks.speech || tasks.chat?.outputs.includes("audio"));
  field("voice-field").hidden = voices.length === 0;
  field("format-field").hidden = field("speed-field").hidden = !speaks;
  field("spoken-field").hidden = !tasks.chat?.outputs.includes("audio");
  field("listen-field").hidden = !tasks.chat?.inputs.includes("audio");
  field("tokens-field").hidden = field("temperature-field").hidden = !tasks.chat;
}

/** Keeps the key for as long as the tab lives, and shows the speed beside its slider. */
export function rememberSettings() {
  field("api-key").value = sessionStorage.getItem(KEY) ?? "";
  field("api-key").addEventListener("input", () => sessionStorage.setItem(KEY, settings.apiKey));
  field("settings").addEventListener("submit", (event) => event.preventDefault());
  field("speed").addEventListener("input", () => (field("speed-shown").value = settings.speed.toFixed(1)));
}

function fill(select, choices) {
  select.replaceChildren(...choices.map(([value, text]) => new Option(text, value)));
}
