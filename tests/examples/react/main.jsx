/** A page that shows the chat, or does not. */

import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";

import { Chat } from "./Chat.jsx";

const model = new URLSearchParams(location.search).get("model") ?? "/model.gguf";

function App() {
  const [isShown, setShown] = useState(true);
  return (
    <>
      <label>
        <input type="checkbox" checked={isShown} onChange={() => setShown(!isShown)} /> Chat
      </label>
      {isShown && <Chat model={model} />}
    </>
  );
}

createRoot(document.querySelector("main")).render(<StrictMode><App /></StrictMode>);
