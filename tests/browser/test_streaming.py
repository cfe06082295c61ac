"""Text on its way from the worker to the page: in frames, in order, and never more than one message
ahead of a page that is slow."""

from __future__ import annotations

import pytest

from tests.browser.chat import TINY_ON_CPU, Open
from tests.tiny import CHATS, SHIP

pytestmark = pytest.mark.browser

# Random answers into an outbox with a made-up clock; a page that takes its messages when it likes.
# Returns all that was posted, with its time, and what was sent.
SIMULATE = """async ([seed, slowest]) => {
  const { Outbox } = await import('./worker/outbox.mjs');
  let state = seed + 1;
  const random = (n) => (state = (state * 48271) % 2147483647) % n;
  let time = 0;
  let timers = [];
  const posted = [], sent = {}, untaken = [];
  const post = (reply) => {
    posted.push({time, open: untaken.length, ...reply});
    if (reply.kind === 'deltas') untaken.push(time + random(slowest + 1));
  };
  const clock = {now: () => time, later: (work, ms) => timers.push({at: time + ms, work})};
  const outbox = new Outbox(post, clock);
  const pass = (ms) => {
    for (const end = time + ms; time < end; time++) {
      while (untaken.length && untaken[0] <= time) { untaken.shift(); outbox.taken(); }
      const due = timers.filter(({at}) => at <= time);
      timers = timers.filter(({at}) => at > time);
      due.forEach(({work}) => work());
    }
  };
  const running = [1, 2, 3];
  for (const id of running) sent[id] = [];
  for (let step = 0; step < 400 && running.length; step++) {
    const id = running[random(running.length)];
    if (random(60) === 0) {
      running.splice(running.indexOf(id), 1);
      outbox.send({id, kind: random(2) ? 'result' : 'error'});
    } else {
      const text = `${id}.${step} `;
      sent[id].push(text);
      const kind = sent[id].length < 9 ? 'reasoning' : 'delta';
      outbox.send({id, kind, text, num_tokens: sent[id].length});
    }
    if (random(3) === 0) pass(random(30));
  }
  pass(slowest * 3 + 100);
  return {posted, sent, running};
}"""


@pytest.mark.parametrize("slowest", [0, 5, 100, 2000])
def test_any_answers_to_any_page(open_chat: Open, slowest: int) -> None:
    page = open_chat("model=models/none.json&device=cpu").page
    for seed in range(20):
        result = page.evaluate(SIMULATE, [seed, slowest])
        posted = result["posted"]
        said: dict[str, str] = dict.fromkeys(result["sent"], "")
        last = -100.0
        ended = set()
        for i, message in enumerate(posted):
            if message["kind"] != "deltas":
                ended.add(message["id"])
                continue
            follows = posted[i + 1] if i + 1 < len(posted) else {"id": None}
            ids = [d["id"] for d in message["deltas"]]
            at_end = set(ids) == {follows.get("id")}
            begins = not any(said[str(id)] for id in ids) and len(set(ids)) == 1
            if not at_end:
                assert begins or message["time"] - last >= 16, f"seed {seed}: one a frame"
                assert message["open"] == 0, f"seed {seed}: the page has taken the last one"
            last = message["time"]
            kinds = [(d["id"], d["kind"]) for d in message["deltas"]]
            assert kinds and len(set(kinds)) == len(kinds)
            assert not ended & set(ids), f"seed {seed}: text after its end"
            for delta in message["deltas"]:
                id = str(delta["id"])
                said[id] += delta["text"]
                so_far = result["sent"][id][: delta["num_tokens"]]
                assert said[id] == "".join(so_far), f"seed {seed}: in order, counted"
        assert said == {id: "".join(texts) for id, texts in result["sent"].items()}
        assert ended | set(result["running"]) == {1, 2, 3}


# A worker of the test's own, whose messages are taken only if `takes`.
RAW = """async ([prompts, takes]) => {
  const worker = new Worker('worker/worker.mjs', {type: 'module'});
  const replies = [];
  let wake = () => {};
  worker.onmessage = ({data}) => {
    replies.push(data);
    if (takes && data.kind === 'deltas') worker.postMessage({kind: 'taken'});
    wake();
  };
  const ended = async (id) => {
    const isEnd = (r) => r.id === id && (r.kind === 'result' || r.kind === 'error');
    while (!replies.some(isEnd)) await new Promise((resolve) => (wake = resolve));
  };
  const model = new URL('models/tiny/manifest.json', location).href;
  worker.postMessage({id: 0, kind: 'load', model, device: 'cpu', context: 512});
  await ended(0);
  replies.length = 0;
  prompts.forEach(({messages}, i) =>
    worker.postMessage({id: i + 1, kind: 'generate', messages, max_tokens: 150}));
  for (const i of prompts.keys()) await ended(i + 1);
  worker.terminate();
  return replies;
}"""


@pytest.mark.parametrize("takes", [True, False], ids=["page", "page_that_takes_nothing"])
def test_two_answers_at_once_say_all_in_order(open_chat: Open, takes: bool) -> None:
    page = open_chat("model=models/none.json&device=cpu").page
    replies = page.evaluate(RAW, [CHATS, takes])
    texts = {1: "", 2: ""}
    for reply in replies:
        if reply["kind"] == "deltas":
            for delta in reply["deltas"]:
                texts[delta["id"]] += delta["text"]
        else:
            value = reply["value"]
            assert value["ids"] == CHATS[reply["id"] - 1]["ids"][:150]
            assert texts[reply["id"]] == value["text"], "nothing is held back at the end"
    messages = [r for r in replies if r["kind"] == "deltas"]
    if not takes:
        assert len(messages) <= 3, "the first, and one at each end"


def test_a_page_that_sleeps_gets_it_all(open_chat: Open) -> None:
    chat = open_chat(TINY_ON_CPU).wait_for("ready")
    ids, text, content = chat.page.evaluate(
        """async (messages) => {
          const stream = octavo.chat.completions.create({messages, max_tokens: 200, stream: true});
          let text = '', last;
          for await (const chunk of stream) {
            if (text === '') for (const end = Date.now() + 2000; Date.now() < end;);
            text += chunk.choices[0].delta.content ?? '';
            last = chunk;
          }
          const whole = await octavo.chat.completions.create({messages, max_tokens: 200});
          return [last.octavo.ids, text, whole.choices[0].message.content];
        }""",
        SHIP["messages"],
    )
    assert ids == SHIP["ids"][:200]
    assert text == content == SHIP["text"]
