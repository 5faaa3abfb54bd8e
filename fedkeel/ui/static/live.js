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
  const redraw = (now) => {
    for (const source of document.querySelectorAll("picture source")) source.srcset = renewed(source.srcset, now);
    for (const image of document.querySelectorAll("picture img")) {
      image.src = renewed(image.getAttribute("src"), now);
    }
  };

  if (!body.dataset.events || !window.EventSource) return;
  const source = new EventSource(body.dataset.events);
  source.addEventListener("changed", (event) => {
    say("live", "on");
    if (event.data === version) return;
    version = event.data;
    if (window.htmx) window.htmx.trigger(body, "live");
    redraw(version);
  });
  source.onopen = () => say("live", "on");
  source.onerror = () => say("not live: no answer", "off");
})();
