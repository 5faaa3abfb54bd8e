// Follows the runs: the server says that something changed, and the parts of the page that show it are asked for anew.
"use strict";
(() => {
  const body = document.body, status = document.getElementById("live");
  const chosen = new Set(), opened = new Map();
  let version = body.dataset.version;

  const say = (text, name) => {
    if (status && status.textContent !== text) {
      status.textContent = text;
      status.className = "live " + name;
    }
  };

  // What a person has chosen or opened stays so when a part of the page is replaced.
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("input[type=checkbox][name=run]")) {
      box.checked ? chosen.add(box.value) : chosen.delete(box.value);
    }
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.id) opened.set(event.target.id, event.target.open);
  }, true);
  document.addEventListener("htmx:afterSwap", () => {
    for (const box of document.querySelectorAll("input[type=checkbox][name=run]")) box.checked = chosen.has(box.value);
    for (const [id, open] of opened) {
      const found = document.getElementById(id);
      if (found && found.open !== open) found.open = open;
    }
  });

  // "Check" answers in place; every other button of the form sends it as it is.
  document.addEventListener("submit", (event) => {
    const form = event.target, button = event.submitter;
    if (form.matches("form.experiment") && button && button.value === "check" && window.htmx) {
      event.preventDefault();
      window.htmx.trigger(form, "check");
    }
  });

  const renewed = (address, now) => address.replace(/([?&]v=)[^&]*/, "$1" + encodeURIComponent(now));
  const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  const arrived = () => Promise.all([...document.querySelectorAll("picture img")].map((image) => image.complete ? null :
    new Promise((done) => ["load", "error"].forEach((name) => image.addEventListener(name, done, { once: true })))));

  // Pictures are asked for again only when those on their way are there, and not more than a fifth of the time is spent
  // on drawing them: the processor is for training.
  let wanted = null, drawing = false;
  const redraw = async (now) => {
    wanted = now;
    if (drawing) return;
    drawing = true;
    while (wanted !== null) {
      await arrived();
      const began = performance.now(), next = wanted;
      wanted = null;
      for (const source of document.querySelectorAll("picture source")) source.srcset = renewed(source.srcset, next);
      for (const image of document.querySelectorAll("picture img")) {
        image.src = renewed(image.getAttribute("src"), next);
      }
      await pause(20);
      await arrived();
      await pause(Math.max(1500, 4 * (performance.now() - began)));
    }
    drawing = false;
  };

  // A page that nobody sees waits until somebody does.
  let behind = false;
  const renew = () => {
    behind = document.hidden;
    if (behind) return;
    if (window.htmx) window.htmx.trigger(body, "live");
    redraw(version);
  };
  document.addEventListener("visibilitychange", () => {
    if (behind) renew();
  });

  if (!body.dataset.events || !window.EventSource) return;
  const source = new EventSource(body.dataset.events);
  source.addEventListener("changed", (event) => {
    say("live", "on");
    if (event.data === version) return;
    version = event.data;
    renew();
  });
  source.onopen = () => say("live", "on");
  source.onerror = () => say("not live: no answer", "off");
})();
