// Finds the sections that answer a question: BM25 (Robertson & Zaragoza 2009) over headings, asked words and texts.

const STOP = new Set(("a an the of to in on at for from with by as is are was be do does did how what why when which who where can could " +
  "i my me you your it its this that these those and or not no if so there here about into out up get gets use using want need " +
  "pytorch torch python please way").split(" "));
const ALIKE = { activations: "output", activation: "output", intermediate: "output", grads: "gradient", grad: "gradient", gradients: "gradient",
  unregister: "remove", uninstall: "remove", delete: "remove", clear: "remove", hooks: "hook", layers: "layer", module: "layer", modules: "layer",
  parameters: "parameter", weights: "weight", images: "picture", image: "picture", visualize: "show", visualise: "show", plot: "show", display: "show",
  llm: "transformer", gpt: "transformer", bert: "transformer", none: "none", freezing: "freeze", modify: "change", edit: "change", alter: "change" };

function stem(word) {
  const known = ALIKE[word] ?? word;
  return known.length > 4 ? known.replace(/(ies)$/, "y").replace(/(ing|ed|es|s)$/, "") : known;
}
function words(text) {
  const found = [];
  for (const word of text.toLowerCase().match(/[a-z0-9_]+/g) ?? []) {
    if (word.includes("_")) found.push(word, ...word.split("_").filter(Boolean).map(stem));
    else found.push(stem(word));
  }
  return found;
}

/** Two words as one, as somebody may type them: gradcam, cheatsheet. */
function pairs(text) {
  const found = text.toLowerCase().match(/[a-z0-9]+/g) ?? [];
  return found.slice(1).map((word, place) => stem(found[place] + word));
}

const TITLE = 1, SIDE = 1.5, PASTED = 0.6, SHARED = 0.15;
/** The words of a text that count, in their order; and whether one such text stands within another. */
const phrase = (text, spell = (word) => word) => ` ${words(text).map(spell).filter((word) => !STOP.has(word)).join(" ")} `;
const overlaps = (one, other) => one.includes(other) || (one.trim().includes(" ") && other.includes(one));
const FIELDS = { heading: 5, asked: 4, typed: 4, page: 2, prose: 1, code: 1 };
const sections = window.hookscopeSections.map((section) => {
  const counts = new Map();
  let length = 0;
  for (const [field, weight] of Object.entries(FIELDS)) {
    for (const word of words(section[field])) {
      counts.set(word, (counts.get(word) ?? 0) + weight);
      length += 1;
    }
    if (weight > 1) for (const word of pairs(section[field])) counts.set(word, (counts.get(word) ?? 0) + weight);
  }
  return { ...section, flat: phrase(`${section.prose} ${section.code}`), counts, length, title: new Set(words(section.page)), typed: section.typed.split(",").map((each) => phrase(each)), phrases: [section.heading, section.page, ...section.asked.split(",")].map((each) => phrase(each)) };
});
const mean = sections.reduce((sum, section) => sum + section.length, 0) / sections.length;
const spread = new Map();
for (const { counts } of sections) for (const word of counts.keys()) spread.set(word, (spread.get(word) ?? 0) + 1);

/** Whether two words differ by one letter: another one, one more, one less, or two that changed places. */
function differsByALetter(one, other) {
  if (one.length > other.length) [one, other] = [other, one];
  if (other.length - one.length > 1) return false;
  let start = 0;
  while (start < one.length && one[start] === other[start]) start += 1;
  const rest = (text, skip) => text.slice(start + skip);
  if (one.length < other.length) return rest(one, 0) === rest(other, 1);
  return rest(one, 1) === rest(other, 1) || (one[start] === other[start + 1] && one[start + 1] === other[start] && rest(one, 2) === rest(other, 2));
}
/** The word itself, or the most frequent one of the site that differs from it by a letter. */
function correct(word) {
  if (word.length < 3 || spread.has(word) || STOP.has(word)) return word;
  for (const known of Object.keys(ALIKE)) if (differsByALetter(word, known)) return stem(known); // they are indexed by another word
  let best = word, most = 0;
  for (const [known, count] of spread) if (count > most && differsByALetter(word, known)) [best, most] = [known, count];
  return best;
}

/** How many words of the question stand side by side in a text: an error message that somebody pasted. */
function run(flat, asked) {
  let longest = 0;
  for (let from = 0; from < asked.length - longest; from += 1) {
    let to = from + longest + 1;
    while (to <= asked.length && flat.includes(` ${asked.slice(from, to).join(" ")} `)) longest = to++ - from;
  }
  return longest;
}

function search(question) {
  const asked = [...new Set(words(question).map(correct))].filter((word) => !STOP.has(word));
  const whole = phrase(question, correct);
  const inOrder = whole.trim().split(" ");
  const scored = sections.map((section) => {
    let score = 0, hits = 0;
    for (const word of asked) {
      const count = section.counts.get(word);
      if (!count) continue;
      hits += 1;
      const rare = Math.log(1 + (sections.length - spread.get(word) + 0.5) / (spread.get(word) + 0.5));
      score += rare * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * section.length / mean));
    }
    // A word or two often name a page: then its title has them, or they stand side by side in what it is asked for.
    const rank = (phrases, exact) => phrases.map((each) => (each === whole ? exact : overlaps(each, whole) ? SIDE : 1));
    // Somebody has written down that this page answers these very words.
    const isTyped = section.typed.includes(whole);
    const side = Math.max(...rank(section.typed, 4), ...rank(section.phrases, 2));
    const named = asked.filter((word) => section.title.has(word)).length / Math.max(asked.length, 1);
    const pasted = score && inOrder.length > 3 ? 1 + PASTED * Math.max(0, run(section.flat, inOrder) - 3) : 1;
    return { section, score: pasted * score * section.weight * (hits / Math.max(asked.length, 1)) ** 0.5 * (1 + TITLE * named * named) * side + (isTyped && score ? 1000 : 0) };
  }).filter(({ score }) => score > 0).sort((a, b) => b.score - a.score);
  // A page of which several sections answer is likelier to be the right one; the chooser's rows are pages of their own.
  const sums = {}, counted = {};
  for (const { section, score } of scored) {
    const page = pageOf(section);
    if ((counted[page] = (counted[page] ?? 0) + 1) <= 4) sums[page] = (sums[page] ?? 0) + score;
  }
  for (const each of scored) each.score += SHARED * Math.min(sums[pageOf(each.section)] - each.score, 3 * each.score);
  scored.sort((a, b) => b.score - a.score);
  const taken = {};
  return scored.filter(({ section }) => (taken[section.url.split("#")[0]] = (taken[section.url.split("#")[0]] ?? 0) + 1) <= 3).slice(0, 20);
}

function shorten(text) {
  return text.length <= 240 ? text : `${text.slice(0, text.lastIndexOf(" ", 238))} …`;
}
const pageOf = ({ url }) => (url.startsWith("9") ? url : url.split("#")[0]);
function excerpt(text, question) {
  const asked = words(question).map(correct).filter((word) => !STOP.has(word));
  const sentences = text.split(/\n|(?<=[.!?][”’"')]*)\s+(?=[^a-z\s])/);
  const best = sentences.map((sentence, place) => [words(sentence).filter((word) => asked.includes(word)).length, -place, sentence])
    .sort((a, b) => b[0] - a[0] || b[1] - a[1])[0];
  return best ? shorten(best[2].trim()) : "";
}

const input = document.getElementById("question");
const results = document.getElementById("results");
const found = document.getElementById("found");
const elsewhere = document.getElementById("elsewhere");
function show() {
  const question = input.value.trim();
  const list = question ? search(question) : [];
  const typed = question.toLowerCase().match(/[a-z0-9_]+/g) ?? [];
  const unknown = typed.filter((word) => words(word).every((each) => !STOP.has(each) && !spread.has(correct(each))));
  const note = unknown.length ? `. No page has the word “${unknown.join("”, “")}”.` : "";
  found.textContent = !question ? "" : list.length ? `${list.length} places, the best first${note}` : `Nothing about “${question}”. Try other words, or one of these pages:`;
  elsewhere.hidden = !question || list.length > 0;
  results.replaceChildren(...list.map(({ section }) => {
    const link = Object.assign(document.createElement("a"), { href: section.url, textContent: section.heading });
    const where = Object.assign(document.createElement("small"), { textContent: section.page === section.heading ? "" : ` ${section.page}` });
    const words = Object.assign(document.createElement("p"), { textContent: excerpt(section.prose, question) });
    const item = document.createElement("li");
    item.append(link, where, words);
    return item;
  }));
}
input.value = new URLSearchParams(location.search).get("q") ?? "";
input.addEventListener("input", () => { history.replaceState(null, "", `?q=${encodeURIComponent(input.value)}`); show(); });
input.form.addEventListener("submit", (event) => event.preventDefault());
show();
