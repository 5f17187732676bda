"use strict";
(() => {
  const body = document.body;
  let version = null;
  const look = async () => {
    try {
      const answer = await (await fetch("/version", { cache: "no-store" })).text();
      if (version !== null && answer !== version) {
        sessionStorage.setItem("scroll", String(scrollY));
        location.reload();
      }
      version = answer;
      body.dataset.live = "following";
    } catch {
      body.dataset.live = "ended";
    }
  };
  scrollTo(0, Number(sessionStorage.getItem("scroll") || 0));
  look();
  setInterval(look, 2000);
})();
