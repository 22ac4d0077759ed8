"use strict";
const box = document.getElementById("filter");
document.querySelector(".tools").hidden = false;
box.addEventListener("input", () => {
  const wanted = box.value.toLowerCase();
  for (const each of document.querySelectorAll("#cases > article")) each.hidden = !each.dataset.text.includes(wanted);
});
