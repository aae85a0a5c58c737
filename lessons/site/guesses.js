// The questions of a chapter, without a kernel: what the real widget says to each guess was recorded (guess_recordings.py). The guesses
// are kept in this browser.

const KEPT = "hookscope guesses";
const ORDINALS = "{{ordinals}}"; // from guess_results.py: how a right guess is counted, by its try
const remember = (all) => { try { localStorage.setItem(KEPT, JSON.stringify(all)); } catch { /* some browsers keep nothing */ } };
const remembered = () => { try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; } };

class Question extends Model {
  constructor(record, guesses, tell) {
    super();
    this.record = record;
    this.tries = [];
    this.state = { ...record.state, given: null, begun: null, answer: null, tried: "", is_over: false, problem: "", _request: 0, _response: 0 };
    for (const guess of guesses) this.state = { ...this.state, ...this.judge(guess) };
    if (this.state.is_over) this.state.given = this.tries.findLast((guess) => guess !== "show") ?? null;
    this.tell = tell;
  }
  take({ _request: request, answer, ...others }) {
    const said = answer === undefined ? undefined : this.judge(answer);
    this.change({ ...this.state, ...others, ...said, _request: request, _response: request });
    if (said) this.tell(this);
  }
  /** What is said to a guess, as traits; undefined if it is not complete, or nobody asks for it. */
  judge(guess) {
    const { tries, shown, texts, state } = this.record;
    if (this.state.is_over) return undefined;
    const key = this.keyOf(guess);
    const number = this.tries.length;
    const isNew = this.tries.every((before) => this.keyOf(before) !== key);
    const found = guess === "show" ? shown : isNew && tries[number][key];
    if (!found) return undefined;
    this.tries.push(guess);
    const [heading, message, mood, over] = found;
    const typed = (text) => (guess.text && mood !== "right" ? text.replace(JSON.parse(key).text, guess.text.trim()) : text);
    this.how = mood === "right" ? ORDINALS[number] : over ? "shown" : undefined;
    const tried = mood === "wrong" ? state.options[guess.at] ?? "" : "";
    return { heading: typed(texts[heading]), message: typed(texts[message]), mood, tried, is_over: over };
  }
  keyOf(guess) {
    if (!guess.text) return JSON.stringify(guess);
    const keys = Object.keys(this.record.tries[0]); // the last one stands for any other text
    return keys.find((key) => numbersIn(JSON.parse(key).text) === numbersIn(guess.text)) ?? keys.at(-1);
  }
}

/** The numbers in a text, however they are set apart, so that "[3,6]" and "3 6" mean the same. */
const numbersIn = (text) => text.replace(/[[\]()'"]/g, " ").split(/[,;\s]+/).filter(Boolean).map(Number).join();

const places = [...document.querySelectorAll("[data-guess]")];
const fold = (about) => document.querySelector(`[data-answer="${about}"]`);

/** Say how the guesses went, at the top of a chapter and on the cards of the first page. */
function showScores() {
  const all = Object.entries(remembered());
  for (const place of document.querySelectorAll("[data-questions]")) {
    const { chapter, questions } = place.dataset;
    const how = all.filter(([about]) => about.startsWith(`${chapter}.`)).map(([, each]) => each.how).filter(Boolean);
    const count = (name) => how.filter((each) => each === name).length;
    const later = ORDINALS.slice(1).filter(count).map((name) => `, ${count(name)} at the ${name} try`);
    const said = !how.length ? `none yet, of ${questions}`
      : `${how.length} of ${questions}, ${count(ORDINALS[0])} right at once${later.join("")}`;
    if (!place.matches(".score")) {
      place.textContent = how.length ? `Your guesses: ${said}` : "";
      continue;
    }
    const again = document.createElement("button");
    again.textContent = "Forget my guesses";
    again.hidden = !all.some(([about]) => about.startsWith(`${chapter}.`));
    again.onclick = () => { forget(chapter); place.focus(); };
    place.tabIndex = -1;
    place.replaceChildren(`Your guesses on this page: ${said}. They stay in this browser. `, again);
  }
}

function forget(chapter) {
  remember(Object.fromEntries(Object.entries(remembered()).filter(([about]) => !about.startsWith(`${chapter}.`))));
  for (const place of places) if (fold(place.dataset.guess)) fold(place.dataset.guess).open = false;
  ask();
}

function keep(about, { tries, how, state }) {
  remember({ ...remembered(), [about]: { tries, how } });
  if (state.is_over) unfoldAnswer(about);
  showScores();
}

function unfoldAnswer(about) {
  const answer = fold(about);
  if (!answer) return;
  answer.open = true;
  answer.classList.add("guessed");
}

let widget;
function ask() {
  for (const place of places) {
    const about = place.dataset.guess;
    const question = new Question(window.hookscopeGuesses[about], remembered()[about]?.tries ?? [], (told) => keep(about, told));
    place.replaceChildren();
    widget.render({ model: question, el: place });
    if (question.state.is_over) unfoldAnswer(about);
    else fold(about)?.classList.remove("guessed");
  }
  showScores();
}

const load = (name) => new Promise((done) => {
  const script = Object.assign(document.createElement("script"), { src: new URL(`live/${name}.js`, here), onload: done });
  document.head.append(script);
});

if (places.length) {
  Promise.all(["guess", `guesses-${places[0].dataset.guess.slice(0, 2)}`].map(load)).then(async () => {
    const { esm, css } = window.hookscopeGuess;
    document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
    widget = (await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })))).default;
    ask();
  });
} else showScores();
