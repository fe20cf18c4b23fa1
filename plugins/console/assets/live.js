// Reads the page again while somebody looks at it, and replaces the sections that have changed. Without
// this script the page is the same, and the link Reload reads it again.

const interval = 2000; // ms between two reads
const longest = 20000; // ms between two reads of a console that does not answer
const limit = 10000; // ms for one read

const note = document.getElementById("read");
const known = new Map(); // by the name of a section, its HTML as the console has sent it last
for (const section of sections(document)) if (isLive(section)) known.set(section.id, section.outerHTML);

function sections(page) {
  return page.querySelectorAll("main > section[id]");
}

function isLive(section) {
  return section.hasAttribute("data-live");
}

// inUse says whether a replacement would disturb a person, who has the focus in the element, has selected
// or filled in some of it, or holds a button or link of it down.
function inUse(element) {
  const selection = getSelection();
  return element.contains(document.activeElement) || element.matches(":active") ||
    (!selection.isCollapsed && selection.containsNode(element, true)) ||
    [...element.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked);
}

// keep gives the new section what a person has opened in the old one. The result scrolls it to the old
// place, once the section is part of the page.
function keep(before, after) {
  const folds = after.querySelectorAll("details");
  before.querySelectorAll("details").forEach((fold, i) => {
    if (folds[i]?.firstElementChild.textContent === fold.firstElementChild.textContent) folds[i].open = fold.open;
  });
  const scrolled = (section) => section.querySelectorAll(".scroll, pre");
  const places = [...scrolled(before)].map((part) => [part.scrollLeft, part.scrollTop]);
  return () => scrolled(after).forEach((part, i) => { if (places[i]) part.scrollTo(...places[i]); });
}

function show(page) {
  const read = page.getElementById("read");
  if (!read) throw new Error("the answer is no page of the console, such as one that asks you to sign in");
  if (!inUse(note.firstElementChild)) note.firstElementChild.textContent = read.firstElementChild.textContent;
  const old = new Map([...sections(document)].map((section) => [section.id, section]));
  let last = note;
  for (const section of sections(page)) {
    const html = section.outerHTML;
    const before = old.get(section.id);
    old.delete(section.id);
    if (!before) {
      last.after(section);
      last = section;
    } else if (!isLive(section) && !isLive(before) || known.get(section.id) === html) {
      before.removeAttribute("data-held");
      last = before;
      continue;
    } else if (inUse(before)) {
      before.setAttribute("data-held", "");
      last = before;
      continue; // it is compared again next time
    } else {
      const scroll = keep(before, section);
      before.replaceWith(section);
      scroll();
      last = section;
    }
    if (isLive(section)) {
      known.set(section.id, html);
    } else if (known.delete(section.id)) {
      ended = known.size === 0;
    }
  }
  for (const section of old.values()) { // the console has nothing to show there any more
    if (isLive(section) && !inUse(section)) {
      section.remove();
      known.delete(section.id);
    }
  }
}

const problem = document.createElement("p");
problem.className = "problem";
const reason = document.createElement("span");
reason.setAttribute("role", "status");
const age = document.createElement("span"); // no part of the status: it would be read out each second
problem.append(reason, " ", age);
let failures = 0;
let since = performance.now(); // when what is shown was read

function tellAge() {
  age.textContent = `What is shown is ${Math.round((performance.now() - since) / 1000)}s old.`;
}

let paused = false;
let ended = false; // nothing changes any more, such as after the end of an action

async function read() {
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { "Millrace-Refresh": "yes" }, cache: "no-store", signal: AbortSignal.timeout(limit) });
    if (!answer.ok) throw new Error(`it answers with the status ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (paused) return;
    show(page);
    since = began;
    failures = 0;
    problem.remove();
    document.body.classList.remove("stale");
  } catch (error) {
    if (paused) return;
    failures++;
    reason.textContent = `The console can't be read: ${error.message}. It is tried again.`;
    tellAge();
    if (!problem.isConnected) note.after(problem);
    document.body.classList.add("stale");
  }
}

let timer;
let reading = false;

async function next() {
  clearTimeout(timer);
  if (paused || ended || document.hidden || reading) return;
  reading = true;
  await read();
  reading = false;
  if (ended) {
    note.querySelector("button").remove();
    return;
  }
  timer = setTimeout(next, Math.min(longest, interval * 2 ** failures));
}

if (known.size > 0) {
  const button = document.createElement("button");
  button.type = "button";
  const label = () => { button.textContent = paused ? "Resume updates" : "Pause updates"; };
  button.addEventListener("click", () => { paused = !paused; label(); next(); });
  label();
  note.append(" ", button);
  document.addEventListener("visibilitychange", next);
  setInterval(() => { if (problem.isConnected) tellAge(); }, 1000);
  timer = setTimeout(next, interval);
}
