// Browsers start no workers from the disk. There, a hidden frame does what the search's worker does on a server.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.onload = () => this.start(frame.contentWindow, address)
      document.body.append(frame)
    }

    start(inside, address) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = address
      script.onload = () => {
        this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
        this.waiting.forEach(this.postMessage)
      }
      inside.document.body.append(script)
    }

    postMessage(data) {
      this.waiting.push(data)
    }
  }
}
