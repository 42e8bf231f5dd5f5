// All foreign texts arrive as JSON and are shown as text, never as HTML.
const part = (id) => document.getElementById(id);
const { name, digest, columns, rows, label, left_out: leftOut, texts, numbers, answers, classes,
  images } = JSON.parse(part("data").textContent);
// The letters p, s, u and x are commands, so they choose no class.
const KEYS = [..."1234567890abcdefghijklmnoqrtvwyz"];
const SEARCHED = classes.length > KEYS.length;
// A class named like a key has this key. The other classes get the remaining keys, in order.
const called = classes.map((text) => text.toLowerCase());
const left = KEYS.filter((key) => !called.includes(key));
const keyOf = called.map((text, index) => (
  KEYS.includes(text) && called.indexOf(text) === index ? text : left.shift()));
const STORE = `covcal label ${digest}`;
const FOLDED = { characters: 700, lines: 8, numbers: 12 }; // more is shown when asked for

// An answer is null for an open row, "" if the class cannot be told, else a class name.
let state = { answers: rows.map((row) => row[label] || null), past: [], at: 0 };
let unsaved = false;
let revealed = false;
let unfolded = false; // whether the row that is shown is shown whole

// Characters that are invisible or turn the direction of writing are shown by their code.
const shown = (text) => text.replace(
  /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu,
  (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);

// A spreadsheet reads "=1+1" as a formula, so the CSV has an apostrophe before it.
const unescaped = (cell) => (/^'+[=+\-@\t\r]/.test(cell) ? cell.slice(1) : cell);

// As `shown`, but lines and tabs of a text are not changed.
const lined = (text) => text.split(/\r\n?|\n/).map(
  (line) => line.split("\t").map(shown).join("\t")).join("\n");

function restored() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE));
    const known = (answer) => answer === null || answer === "" || classes.includes(answer);
    if (kept?.answers?.length === rows.length && kept.answers.every(known)) {
      state = kept;
      return kept.past.length > 0;
    }
  } catch { /* nothing is stored, or nothing can be */ }
  return false;
}

function keep() {
  try {
    localStorage.setItem(STORE, JSON.stringify(state));
    return true;
  } catch {
    unsaved = true;
    notice("This browser cannot store your answers: save the CSV before you close the page.");
    return false;
  }
}

function notice(text) {
  part("notice").textContent = text;
  part("notice").hidden = !text;
}

const isOpen = (index) => state.answers[index] === null;
const waiting = (from) => rows.findIndex((_, index) => index >= from && isOpen(index));

function answer(value) {
  if (state.at >= rows.length) return;
  const given = state.at;
  state.past.push([given, state.answers[given]]);
  state.answers[given] = value;
  const later = waiting(given + 1);
  const next = later >= 0 ? later : waiting(0);
  state.at = next >= 0 ? next : rows.length;
  unfolded = false;
  keep();
  show(value ? `Row ${given + 1}: ${shown(value)}.` : `Row ${given + 1} left empty.`);
}

function undo() {
  const last = state.past.pop();
  if (!last) return;
  [state.at, state.answers[last[0]]] = last;
  unfolded = false;
  keep();
  show(`Row ${last[0] + 1} is open again.`);
}

function step(by) {
  const at = state.at + by;
  if (at < 0 || at > rows.length || (at === rows.length && waiting(0) >= 0)) return;
  state.at = at;
  unfolded = false;
  show("");
}

function unfold() {
  if (part("unfold").hidden) return;
  unfolded = true;
  show("");
  part("texts").scrollIntoView({ block: "nearest" });
}

function reveal() {
  revealed = !revealed;
  show("");
  part("secrets").scrollIntoView({ block: "nearest" });
}

// RFC 4180 with line feeds, as covcal writes it.
const field = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csv() {
  const filled = rows.map((row, index) => row.map(
    (cell, column) => (column === label ? state.answers[index] ?? "" : cell)));
  return [columns, ...filled].map((row) => `${row.map(field).join(",")}\n`).join("");
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  unsaved = false;
  const open = state.answers.filter((value) => value === null).length;
  show(open ? `Saved ${name}; ${open} rows are still open.` : `Saved ${name}.`);
}

function show(said) {
  const end = state.at === rows.length;
  const done = state.answers.filter((value) => value !== null).length;
  const empty = state.answers.filter((value) => value === "").length;
  const place = end ? `${rows.length} of ${rows.length} answered` : `${state.at + 1} of ${rows.length}`;
  part("status").textContent = [said, `${place}.`].join(" ").trim();
  part("progress").max = rows.length;
  part("progress").value = done;
  part("row").hidden = part("told").hidden = part("choice").hidden = end;
  part("done").hidden = !end;
  part("count").textContent = `${done - empty} labelled, ${empty} left empty.`;
  part("partial").hidden = !empty;
  if (!end) showRow();
  part("reveal").setAttribute("aria-pressed", revealed);
  part("undo").disabled = state.past.length === 0;
  part("back").disabled = state.at === 0;
  part("next").disabled = end || (state.at === rows.length - 1 && waiting(0) >= 0);
  part("skip").disabled = end;
  part("skip").setAttribute("aria-pressed", !end && state.answers[state.at] === "");
  for (const button of buttons) {
    button.disabled = end;
    button.setAttribute("aria-pressed", !end && button.value === state.answers[state.at]);
  }
  if (SEARCHED && part("search").value) find("");
  if (end && (document.activeElement === document.body || document.activeElement.disabled)) {
    part("save").focus();
  }
}

function showRow() {
  const row = rows[state.at];
  const image = images[state.at];
  const picture = part("picture");
  picture.hidden = !image;
  if (image) picture.src = image;
  picture.alt = `Image ${state.at + 1} of ${rows.length}`;
  part("unseen").hidden = image !== "";
  const cells = row.map(unescaped);
  const filled = (index) => cells[index] !== "";
  // With an image, all cells are shown on demand, because they can give its class away.
  const [paragraphs, lines] = image ? [[], []] : [texts.filter(filled), numbers.filter(filled)];
  const rest = columns.map((_, index) => index).filter((index) => filled(index)
    && !leftOut.includes(index) && (image || ![...texts, ...numbers].includes(index)));
  const folds = paragraphs.some((index) => cells[index].length > FOLDED.characters
    || cells[index].split("\n").length > FOLDED.lines) || lines.length > FOLDED.numbers;
  part("row").classList.toggle("folded", folds && !unfolded);
  part("unfold").hidden = !folds || unfolded;
  part("texts").replaceChildren(...paragraphs.flatMap((index) => {
    const [heading, text] = [document.createElement("h2"), document.createElement("p")];
    heading.textContent = shown(unescaped(columns[index]));
    text.textContent = lined(cells[index]);
    text.className = "text";
    text.dir = "auto";
    const section = document.createElement("section");
    section.append(heading, text);
    return section;
  }));
  part("numbers").tBodies[0].replaceChildren(...lines
    .slice(0, unfolded ? undefined : FOLDED.numbers).map((index) => {
      const line = document.createElement("tr");
      const [heading, value] = [document.createElement("th"), document.createElement("td")];
      heading.scope = "row";
      heading.textContent = shown(unescaped(columns[index]));
      value.textContent = shown(cells[index]);
      value.dir = "auto";
      line.append(heading, value);
      return line;
    }));
  const [facts, secrets] = ["facts", "secrets"].map(part);
  facts.replaceChildren();
  secrets.replaceChildren();
  const add = (list, column, cell) => {
    const [term, value] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = shown(column);
    value.textContent = shown(cell);
    value.dir = "auto";
    list.append(term, value);
  };
  for (const index of rest) {
    if (!image || revealed) add(image ? secrets : facts, unescaped(columns[index]), cells[index]);
  }
  for (const [column, ofRows] of revealed ? Object.entries(answers) : []) {
    add(secrets, column, ofRows[state.at]);
  }
}

const buttons = classes.map((text, index) => {
  const button = document.createElement("button");
  button.type = "button";
  button.value = text;
  const words = document.createElement("bdi");
  words.textContent = shown(text);
  button.append(words);
  if (!SEARCHED) {
    const key = document.createElement("kbd");
    key.textContent = keyOf[index];
    button.prepend(key);
    button.setAttribute("aria-keyshortcuts", keyOf[index]);
  }
  button.addEventListener("click", () => answer(text));
  return button;
});

const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

function find(text) {
  part("search").value = text;
  const sought = plain(text);
  for (const button of buttons) button.hidden = !plain(button.value).includes(sought);
}

// The best match: the whole name, else its beginning, else any part of it.
function best() {
  const sought = plain(part("search").value);
  if (!sought) return undefined;
  const found = buttons.filter((button) => !button.hidden);
  return found.find((button) => plain(button.value) === sought)
    ?? found.find((button) => plain(button.value).startsWith(sought)) ?? found[0];
}

function typed(event) {
  const box = part("search");
  if (event.key === "Enter") {
    event.preventDefault();
    const found = best();
    if (found && !event.repeat) answer(found.value);
  } else if (event.key === "Escape") {
    find("");
    box.blur();
  } else if (event.key === "/" && !box.value) {
    event.preventDefault();
  } else if (event.key === "Backspace" && !box.value && !event.repeat) {
    event.preventDefault();
    undo();
  }
}

const ACTIONS = { u: undo, backspace: undo, x: () => answer(""), s: save, p: reveal, ".": unfold,
  arrowleft: () => step(-1), arrowright: () => step(1) };

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s") {
    event.preventDefault();
    save();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target === part("search")) {
    typed(event);
    return;
  }
  // The character of the key, or its place on the keyboard for another script or with Shift.
  const writes = event.key.toLowerCase();
  const key = /^([a-z0-9.]|..+)$/.test(writes)
    ? writes : event.code.replace(/^(Key|Digit)/, "").toLowerCase();
  const action = ACTIONS[key];
  const chosen = SEARCHED ? undefined : classes[keyOf.indexOf(key)];
  if (SEARCHED && event.key === "/") {
    event.preventDefault();
    part("search").focus();
  } else if (action || chosen !== undefined) {
    event.preventDefault();
    // A key that is held down must not answer one row after another.
    if (event.repeat && !key.startsWith("arrow")) return;
    if (action) action();
    else answer(chosen);
  }
});

addEventListener("beforeunload", (event) => {
  if (unsaved) event.preventDefault();
});

document.title = `Label ${rows.length} rows: ${shown(name)}`;
part("name").textContent = `Label ${rows.length} rows`;
part("file").textContent = shown(name);
part("classes").append(...buttons);
part("search").hidden = !SEARCHED;
part("search").addEventListener("input", (event) => find(event.target.value));
part("keys").textContent = SEARCHED
  ? "Press / to search. Enter takes the best match, Escape leaves the search."
  : "Press the key shown beside a class to choose it.";
for (const [id, act] of Object.entries({ save, undo, reveal, unfold, skip: () => answer(""),
  back: () => step(-1), next: () => step(1) })) {
  part(id).addEventListener("click", act);
}
const again = restored();
if (!again) {
  const first = waiting(0);
  state.at = first >= 0 ? first : rows.length;
}
if (SEARCHED && matchMedia("(pointer: fine)").matches) part("search").focus();
show(again ? "Your earlier answers are here again." : "");
