// follow keeps a stream of Server-Sent Events of plugins/sse open, notices when nothing arrives any
// more, and shares one connection among all pages of a browser that give the same key. The README of
// plugins/sse explains the options and the states.
const pause = 1000; // between two looks at the time, in ms
const unanswered = 5000; // after which a page takes over from one that does not answer
const reconnects = 5000, reconnectsBusy = 30000; // the longest waits of an EventSource before it connects again
const most = 1000; // events that a new page receives

export function follow({ address, key, names, latest = [], passing = [], first, silence, event, state, reset = () => {} }) {
  const self = Math.random().toString(36).slice(2);
  const shared = key && navigator.locks && window.BroadcastChannel;
  let active = false, leading = false, synced = false, leader = "";
  let source, channel, waiting, release, releasing, retrying;
  let last = "", heard = 0, current = "", kept = [], mark, extra = 0;

  // A clock may be changed, and the other one may stand still while the device sleeps.
  const sign = () => { mark = [performance.now(), Date.now()]; };
  const elapsed = () => Math.max(performance.now() - mark[0], Date.now() - mark[1]);
  const tell = message => { if (channel) channel.postMessage({ from: self, ...message }); };

  function change(to) {
    current = to;
    if (leading) tell({ kind: "state", state: to });
    state(to);
  }
  function deliver(name, data, id) {
    let value = {};
    try { value = JSON.parse(data); } catch { /* it is for the page to miss what it needs */ }
    event(name, value, id);
  }
  function take(name, data, id) {
    sign();
    if (id) last = id;
    if (name !== "busy") heard = Date.now();
    if (leading) tell({ kind: "event", name, data, id, heard });
    if (name === "heartbeat") return;
    if (name === first) kept = [];
    kept = kept.filter(one => one.name !== "busy" && (one.name !== name || !latest.includes(name)));
    if (name !== "closed" && !passing.includes(name)) kept.push({ name, data, id });
    if (kept.length > most) kept.shift();
    deliver(name, data, id);
  }
  function disconnect() {
    clearTimeout(retrying);
    if (source) source.close();
    source = null;
  }
  // A browser also ends the stream of a page that the user leaves. No page may take that as a refusal,
  // so refused is reported only by a page that is still there after the pause.
  function refuse() {
    retrying = setTimeout(connect, 2000 + 4000 * Math.random());
    change("refused"); // the page finds out why, and may stop
  }
  function connect() {
    disconnect();
    sign();
    extra = 0;
    let busy = false;
    const one = source = new EventSource(address(last));
    one.onopen = () => {
      sign();
      extra = 0;
      busy = false;
      change("open");
    };
    one.onerror = () => {
      sign();
      extra = busy ? reconnectsBusy : reconnects;
      if (one.readyState !== EventSource.CLOSED) return change("lost");
      source = null;
      change("lost");
      retrying = setTimeout(refuse, pause);
    };
    for (const name of new Set([...names, "heartbeat", "busy", "closed"]))
      one.addEventListener(name, message => {
        if (one !== source) return;
        busy = busy || name === "busy";
        take(name, message.data, message.lastEventId);
      });
  }

  // One page holds the lock and has the connection. The others wait for the lock.
  function lead() {
    leading = synced = true;
    leader = self;
    tell({ kind: "lead", last });
    connect();
  }
  function follower() {
    leading = synced = false;
    disconnect();
    if (release) release();
    release = null;
    sign();
    queue({});
    tell({ kind: "ask" });
  }
  function queue(how) {
    if (waiting) waiting.abort();
    const request = waiting = new AbortController();
    navigator.locks.request(key, how.steal ? how : { signal: request.signal }, () => {
      if (request !== waiting) return null;
      return new Promise(done => { release = done; lead(); });
    }).catch(() => { if (request === waiting && leading) follower(); }); // another page has taken over
  }
  function hear(message) {
    const { kind, from } = message;
    if (kind === "ask") {
      if (leading) tell({ kind: "replay", to: from, kept, last, heard, state: current });
    } else if (kind === "lead") {
      leader = from;
      if (leading) follower();
      sign();
      // The new leader continues after other events than this page has: the server would repeat some of
      // them, or skip some. This page therefore takes over what the leader has.
      if (synced && message.last !== last) {
        synced = false;
        tell({ kind: "ask" });
      }
    } else if (leading) {
      // from a page that does not know yet that it is no longer the leader
    } else if (kind === "replay" && message.to === self && !synced) {
      sign();
      synced = true;
      leader = from;
      ({ last, heard, kept } = message);
      reset();
      for (const { name, data, id } of kept) deliver(name, data, id);
      if (message.state) change(message.state); // none yet: the leader connects for the first time
    } else if (from === leader && synced) {
      if (kind === "event") {
        if (current !== "open") change("open");
        take(message.name, message.data, message.id);
        heard = message.heard;
      } else if (kind === "state") {
        sign();
        if (message.state !== current) change(message.state);
      }
    }
  }

  function look(limit) {
    if (!active) return;
    if (leading || !shared) {
      if (source && elapsed() > limit + extra) {
        change("silent");
        connect();
      } else if (leading && current !== "open") tell({ kind: "state", state: current }); // the leader is there
      return;
    }
    if (elapsed() > (synced ? 1.5 * limit : unanswered)) {
      sign();
      queue({ steal: true });
      return;
    }
    if (!synced) tell({ kind: "ask" });
    else if (elapsed() > limit && current !== "silent") change("silent");
  }
  // leave gives the connection to another page, later when that one may have to learn of the end first.
  function leave(after) {
    const done = release;
    if (waiting && !leading) waiting.abort();
    waiting = release = null;
    active = leading = synced = false;
    disconnect();
    if (channel) channel.close();
    channel = null;
    if (!done) return;
    if (!after) return done();
    releasing = () => { releasing = null; done(); };
    setTimeout(() => { if (releasing) releasing(); }, after);
  }
  function start() {
    active = true;
    sign();
    current = "";
    if (!shared) return connect();
    channel = new BroadcastChannel(key);
    channel.onmessage = message => hear(message.data);
    queue({});
    tell({ kind: "ask" });
  }
  let suspended = false;
  function suspend() {
    suspended = suspended || active;
    if (active) leave(0);
  }
  function resume() {
    if (suspended) start();
    suspended = false;
  }
  setInterval(() => look(silence), pause);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(silence / 2); });
  document.addEventListener("freeze", suspend);
  document.addEventListener("resume", resume);
  addEventListener("pagehide", suspend);
  addEventListener("pageshow", resume);
  addEventListener("online", () => { if (source) connect(); });
  return {
    // open begins, or begins again. fresh forgets the last event id: the server then takes the page as a new one.
    open(fresh) {
      if (active) leave(0);
      if (releasing) releasing();
      if (fresh) [last, kept, heard] = ["", [], 0];
      start();
    },
    stop() { if (active) leave(pause); suspended = false; },
    // heard is when the last event came in which the server knew this page, in ms since 1970; 0: never.
    get heard() { return heard; },
  };
}
