// The pages work without this. It shows them anew every few seconds, and filters while one types: the parts that are
// marked `data-live` are taken from the same page, made again by the server.
"use strict";

const live = document.getElementById("live");
const theme = document.getElementById("theme");
const every = Number(document.body.dataset.every) * 1000;
let asked = null;

const isHeld = (part) => {
  const selection = getSelection();
  return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
};

const take = (text) => {
  const made = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = made.getElementById(part.id);
    if (!next || next.innerHTML === part.dataset.made || isHeld(part)) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const places = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    part.dataset.made = next.innerHTML;
    part.replaceChildren(...document.adoptNode(next).childNodes);
    part.querySelectorAll(".scroll").forEach((each, at) => (each.scrollLeft = places[at] || 0));
    showTimes(part);
    if (!focused) continue;
    const same = focused.hasAttribute("href")
      ? [...part.querySelectorAll("[href]")].find((each) => each.getAttribute("href") === focused.getAttribute("href"))
      : part.querySelector("[tabindex]");
    if (same) same.focus({ preventScroll: true });
  }
};

const ask = async (address) => {
  if (asked) asked.abort();
  const mine = (asked = new AbortController());
  try {
    const answer = await fetch(address, { signal: mine.signal, credentials: "same-origin" });
    if (!answer.ok) throw new Error(answer.status);
    take(await answer.text());
    live.classList.remove("lost");
  } catch (error) {
    if (error.name !== "AbortError") live.classList.add("lost");
  } finally {
    if (asked === mine) asked = null;
  }
};

const isLive = () => live.getAttribute("aria-pressed") === "true";

// Times are in UTC on the page, and in the reader's own zone where the pointer rests.
const showTimes = (part) => {
  for (const each of part.querySelectorAll("time[data-ms]")) {
    const at = new Date(Number(each.dataset.ms));
    if (!isNaN(at)) each.title = at.toLocaleString();
  }
};

if (document.querySelector("[data-live]")) {
  live.hidden = false;
  live.addEventListener("click", () => live.setAttribute("aria-pressed", String(!isLive())));
  setInterval(() => {
    if (isLive() && !document.hidden && !asked) ask(location.href);
  }, every);
}
showTimes(document);

const themes = ["", "light", "dark"];
const setTheme = (name) => {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  theme.textContent = { "": "Auto", light: "Light", dark: "Dark" }[name];
  theme.setAttribute("aria-label", `Colours: ${theme.textContent}. Change`);
};
theme.hidden = false;
setTheme(localStorage.getItem("theme") || "");
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(localStorage.getItem("theme") || "") + 1) % themes.length];
  localStorage.setItem("theme", next);
  setTheme(next);
});

const filter = document.querySelector("[data-filter]");
let typed = 0;
filter?.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => {
    const address = new URL(location.href);
    address.searchParams.delete("page");
    if (filter.value) address.searchParams.set("filter", filter.value);
    else address.searchParams.delete("filter");
    history.replaceState(null, "", address);
    ask(address);
  }, 150);
});

// A search answers what one request may read. This asks for the next part until there is something, or is stopped.
const onward = document.getElementById("onward");
let isSearching = false;
const search = async () => {
  for (let link; isSearching && (link = document.querySelector("[data-onward]")); ) {
    const answer = await fetch(link.href, { credentials: "same-origin" });
    if (!answer.ok) break;
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    history.replaceState(null, "", link.href);
    for (const id of ["records", "others"]) {
      document.getElementById(id).replaceWith(document.adoptNode(made.getElementById(id)));
    }
  }
  isSearching = false;
  onward.textContent = "Search on";
  onward.hidden = !document.querySelector("[data-onward]");
  showTimes(document);
};
if (onward) {
  onward.hidden = false;
  onward.addEventListener("click", () => {
    isSearching = !isSearching;
    if (!isSearching) return;
    onward.textContent = "Stop";
    search().catch(() => live.classList.add("lost"));
  });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (event.key === "/") {
    const field = document.getElementById("filter");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    if (event.target.closest(".scroll, pre")) return;
    document.querySelector(`.pager a[rel="${event.key === "ArrowRight" ? "next" : "prev"}"]`)?.click();
  }
});
