// The stages' state and the server's. In: overviews, one after another. Out: the list on the page, the word in its head.
// Does not know: how an overview is fetched.

const chip = document.getElementById("server-state");
const list = document.getElementById("stages");
const requests = document.getElementById("requests");

/** Shows one overview. */
export function showOverview({ stages, requests: counts }) {
  const missing = stages.filter((stage) => stage.replicas === 0).map((stage) => stage.name);
  say(missing.length ? "waiting" : "ready", missing.length ? `waiting for ${missing.join(", ")}` : "ready");
  while (list.children.length > stages.length) list.lastChild.remove();
  stages.forEach((stage, index) => {
    const row = list.children[index] ?? list.appendChild(newRow());
    row.dataset.state = stateOf(stage);
    row.children[0].textContent = stage.name;
    row.children[1].textContent = loadOf(stage);
    row.title = `${stage.replicas} live, ${stage.running} of ${stage.places} places taken, ${stage.waiting} waiting`;
  });
  requests.textContent = `${counts.inflight} in work, ${counts.queued} waiting to be let in`;
}

/** Says that there is no overview. */
export function showAway() {
  say("away", "no answer");
  for (const row of list.children) row.dataset.state = "away";
  requests.textContent = "";
}

function say(state, words) {
  chip.dataset.state = state;
  if (chip.textContent !== words) chip.textContent = words; // a status role reads out every change
}

function stateOf({ replicas, running, waiting }) {
  if (replicas === 0) return "away";
  if (waiting > 0) return "full";
  return running > 0 ? "busy" : "idle";
}

function loadOf({ replicas, running, waiting }) {
  if (replicas === 0) return "no replica";
  const load = running + waiting === 0 ? "idle" : `${running} running${waiting ? `, ${waiting} waiting` : ""}`;
  return replicas > 1 ? `${load} · ${replicas} replicas` : load;
}

function newRow() {
  const row = document.createElement("li");
  for (const name of ["name", "load"]) row.appendChild(document.createElement("span")).className = name;
  return row;
}
