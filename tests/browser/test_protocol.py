"""Junk posted to the real worker, while it boots and afterwards: each message gets one error, and
good requests beside it their answers."""

from __future__ import annotations

import json

import pytest

from tests.browser.chat import Chat, Open
from tests.tiny import SHIP

pytestmark = pytest.mark.browser
CODES = {"request.invalid", "request.unknown", "prompt.empty", "prompt.too_long"}
# Starts a worker of its own; `ask` waits for a request's end, `junk` posts what is none.
SETUP = """() => {
  const worker = new Worker('worker/worker.mjs', {type: 'module'});
  const replies = [];
  let next = 1000;
  worker.onmessage = ({data}) => replies.push(data);
  const finals = (id) => replies.filter((r) => r.id === id && ['result', 'error'].includes(r.kind));
  const post = (fields) => { worker.postMessage({id: ++next, ...fields}); return next; };
  const ended = async (id, count = 1) => {
    const end = performance.now() + 60_000;  // no answer is a failure, not a hang
    while (finals(id).length < count && performance.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    return finals(id)[count - 1] ?? {error: `no answer to ${id}`};
  };
  const ask = (fields) => ended(post(fields));
  const nested = (depth) => { let v = []; while (depth--) v = [v]; return v; };
  const cyclic = {}; cyclic.self = cyclic;
  const without = [  // what has no usable id
    undefined, null, 7, 'status', '{"id":1,"kind":"status"}', true, [], {}, new ArrayBuffer(8),
    new Map([['id', 5]]), new Date(), /x/, new Error('x'), 10n, {kind: 'status'}, {id: '5'},
    {id: null}, {id: 1.5}, {id: NaN}, {id: Infinity}, {id: -1}, {id: 2 ** 60}, {id: 1e300},
    {id: 5n}, {id: {}}, {id: [5]}, Object.assign([], {id: 5, kind: 'status'}), nested(3000),
  ];
  const wrong = [  // what has one
    {}, {kind: 'dance'}, {kind: null}, {kind: ['status']}, {kind: {}}, {kind: '\\ud800'},
    {kind: 'x'.repeat(1e6)}, {kind: 'toString'}, {kind: '__class__'}, {kind: 5n, big: 5n},
    {kind: 'generate'}, {kind: 'generate', messages: cyclic},
    {kind: 'generate', messages: [{role: 'user', content: 5n}]},
    {kind: 'generate', messages: nested(400)}, {kind: 'generate', messages: nested(1500)},
    {kind: 'generate', messages: [{role: '\\ud800', content: ''}]},
    {kind: 'generate', messages: [null]}, {kind: 'generate', messages: new Map()},
    {kind: 'generate', messages: [{role: 'user', content: new Uint8Array(4)}]},
    {kind: 'generate', messages: [{role: 'user', content: 'x '.repeat(1e5)}]},
    {kind: 'generate', messages: good, temperature: 'hot'},
    {kind: 'generate', messages: good, seed: 2 ** 40}, {kind: 'generate', messages: good, stop: ''},
    {kind: 'generate', messages: good, max_tokens: -1}, {kind: 'generate', continues: 12345},
    {kind: 'generate', continues: nested(400)}, {kind: 'load', device: 'abacus'},
    {kind: 'load', model: 5}, {kind: 'load', context: '512'}, {kind: 'load', tune: 'yes'},
    {kind: 'load', kv_tokens: 1e300}, {kind: 'stop', target: {}}, {kind: 'stop', target: true},
    {kind: 'measure', prefill: 'many'}, {kind: 'load', devcie: 'cpu'}, {kind: 'unload', modle: 'x'},
  ];
  const junk = (list) => {
    without.forEach((data) => worker.postMessage(data));
    return list.map(post);
  };
  window.raw = {finals, ended, ask, junk, without, wrong, worker};
}"""


@pytest.fixture
def raw(open_chat: Open) -> Chat:
    """A page with ``window.raw``; its own engine loads nothing."""
    chat = open_chat("model=models/none.json&device=cpu")
    chat.page.evaluate(f"window.good = {json.dumps(SHIP['messages'])}; ({SETUP})()")
    return chat


LOAD = "{kind: 'load', model: new URL('models/tiny/manifest.json', location).href, device: 'cpu'}"


@pytest.mark.parametrize("when", ["while Python boots", "with a model"])
def test_junk_gets_errors_and_good_requests_their_answers(raw: Chat, when: str) -> None:
    page = raw.page
    ids, wrong, without = page.evaluate(
        """async (early) => {
          const {ask, ended, junk, without, wrong, finals} = window.raw;
          let load;
          if (!early) await ask(LOAD);
          const wrongIds = junk(wrong);
          if (early) load = await ask(LOAD);
          const answer = await ask({kind: 'generate', messages: good, max_tokens: 30});
          for (const id of wrongIds) await ended(id);
          const again = await ask({kind: 'generate', messages: good, max_tokens: 30});
          await ask({kind: 'status'});
          const summary = (id) => finals(id).map((r) => r.error?.code ?? JSON.stringify(r.value));
          return [[answer.value?.ids, again.value?.ids, load?.error],
                  wrong.map((fields, i) => [String(fields.kind).slice(0, 9), summary(wrongIds[i])]),
                  [without.length, summary(-1)]];
        }""".replace("LOAD", LOAD),
        when == "while Python boots",
    )
    assert ids == [SHIP["ids"][:30], SHIP["ids"][:30], None]
    assert without == [len(without[1]), without[1]] and set(without[1]) == {"request.invalid"}
    allowed = CODES | ({"engine.not_loaded"} if when == "while Python boots" else set())
    for kind, codes in wrong:
        assert len(codes) == 1 and codes[0] in allowed, (kind, codes)


def test_an_id_under_way_is_refused_before_and_after_the_boot(raw: Chat) -> None:
    early, ids, replies = raw.page.evaluate(
        """async () => {
          const {worker, ended, finals} = window.raw;
          const twice = (request) => { worker.postMessage(request); worker.postMessage(request); };
          const both = async (id) => (await ended(id, 2), finals(id));
          twice({id: 1, ...LOAD});
          const load = await both(1);
          twice({id: 2, kind: 'generate', messages: good, max_tokens: 30});
          const answer = await both(2);
          return [load.map((r) => r.error?.code ?? 'loaded'), answer[1].value.ids,
                  answer.map((r) => r.error?.code ?? 'answered')];
        }""".replace("LOAD", LOAD)
    )
    assert early == ["request.invalid", "loaded"]
    assert replies == ["request.invalid", "answered"]
    assert ids == SHIP["ids"][:30]


def test_the_fields_of_a_caller_change_no_id(open_chat: Open) -> None:
    chat = open_chat("model=models/tiny/manifest.json&device=cpu").wait_for("ready")
    for options in ("{id: 99}", "{kind: 'reset'}", "{model: 5}"):
        code = chat.page.evaluate(f"octavo.load({options}).catch(({{code}}) => code)")
        assert code == "request.invalid"
    assert chat.page.evaluate("octavo.load({context: 128})")["model"]["context"] == 128
