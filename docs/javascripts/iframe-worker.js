// Browsers start no workers for pages opened as files, and the search is one: here it runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<!doctype html><script>
        window.postMessage = (data) => parent.postMessage(data, "*");
        window.importScripts = (...addresses) => addresses.reduce((before, address) => before.then(() =>
          new Promise((resolve, reject) => document.head.append(Object.assign(
            document.createElement("script"), { src: address, onload: resolve, onerror: reject })))), Promise.resolve());
      </script><script src="${new URL(address, location.href)}"></script>`;
      this.frame = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow)));
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.frame.then((worker) => worker.dispatchEvent(new worker.MessageEvent("message", { data })));
    }
  };
}
