/** A chat with a model in this tab: loaded when the component mounts, freed when it unmounts. */

import { Octavo } from "octavo";
import { useEffect, useRef, useState } from "react";

const workerUrl = "/octavo/worker/worker.mjs"; // where vite.config.mjs puts the package

/** @param {{model: string}} props address of a GGUF file or a manifest */
export function Chat({ model }) {
  const octavo = useRef(null);
  const [status, setStatus] = useState("Starting");
  const [isReady, setReady] = useState(false);
  const [isAnswering, setAnswering] = useState(false);
  const [messages, setMessages] = useState([]);

  useEffect(() => {
    const client = new Octavo({ workerUrl });
    octavo.current = client;
    client
      .load({ model }, ({ stage, loaded, total }) => {
        setStatus(`${stage}: ${Math.floor((100 * loaded) / (total || 1))} %`);
      })
      .then((loaded) => {
        setStatus(`${loaded.model.name} is ready`);
        setReady(true);
      })
      .catch(show);
    return () => {
      client.close(); // ends a load and an answer, and the worker with all of its memory
      setReady(false);
    };
  }, [model]);

  /** @param {import("octavo").OctavoError} error what ends with the component is none */
  function show({ code, message, hint }) {
    if (code !== "request.cancelled") setStatus(`${message} ${hint}`);
  }

  async function ask(event) {
    event.preventDefault();
    const asked = [...messages, { role: "user", content: event.target.elements.message.value }];
    event.target.reset();
    setMessages(asked);
    setAnswering(true);
    try {
      let content = "";
      const request = { messages: asked, max_tokens: 300, stream: true };
      for await (const chunk of octavo.current.chat.completions.create(request)) {
        content += chunk.choices[0].delta.content ?? "";
        setMessages([...asked, { role: "assistant", content }]);
      }
    } catch (error) {
      show(error);
    }
    setAnswering(false);
  }

  return (
    <section>
      <p role="status">{status}</p>
      {messages.map(({ role, content }, i) => <p key={i} className={role}>{content}</p>)}
      <form onSubmit={ask}>
        <label>Message <input name="message" autoComplete="off" required /></label>
        <button disabled={!isReady || isAnswering}>Ask</button>
        <button type="button" disabled={!isAnswering} onClick={() => octavo.current.stop()}>
          Stop
        </button>
      </form>
    </section>
  );
}
