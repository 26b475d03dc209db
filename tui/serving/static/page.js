// A terminal in a page: what is typed goes to the dashboard over a websocket, what it draws comes back.
"use strict";

const terminal = new Terminal({
  fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
  fontSize: 15,
  scrollback: 0,
});
const fit = new FitAddon.FitAddon();
terminal.loadAddon(fit);
terminal.open(document.getElementById("terminal"));
fit.fit();

const size = () => `width=${terminal.cols}&height=${terminal.rows}`;
const socket = new WebSocket(`ws://${location.host}${location.pathname}socket?${size()}`);
socket.binaryType = "arraybuffer";
const send = (...message) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));

socket.onopen = () => {
  send("resize", terminal.cols, terminal.rows);
  if (document.hasFocus()) send("focus");
  terminal.focus();
};
socket.onmessage = (event) => terminal.write(new Uint8Array(event.data));
socket.onclose = (event) => {
  const ended = document.getElementById("ended");
  ended.textContent = (event.reason || "The dashboard has ended.") + " Reloading the page opens it again.";
  ended.hidden = false;
};

terminal.onData((text) => send("keys", text));
terminal.onResize((now) => send("resize", now.cols, now.rows));
terminal.parser.registerOscHandler(52, (data) => {
  // What was copied in the dashboard goes to the clipboard; nothing is ever read from it.
  const text = data.slice(data.indexOf(";") + 1);
  if (text !== "?") navigator.clipboard.writeText(new TextDecoder().decode(Uint8Array.from(atob(text), (c) => c.charCodeAt(0))));
  return true;
});
addEventListener("resize", () => fit.fit());
addEventListener("focus", () => send("focus"));
addEventListener("blur", () => send("blur"));
