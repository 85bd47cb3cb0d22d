// The choice of a version in the sidebar. `docs/versions.py` writes the list beside the folders of the
// versions; where there is none, as in a build by itself, the choice stays hidden.
document.addEventListener("DOMContentLoaded", async () => {
  const label = document.querySelector(".sidebar-versions");
  if (!label) return;
  const site = new URL(`${label.dataset.root}../`, location.href);
  const answer = await fetch(new URL("versions.json", site)).catch(() => null);
  if (!answer?.ok) return;
  const here = new URL(label.dataset.root, location.href).pathname;
  const select = label.querySelector("select");
  for (const { name, title } of await answer.json()) {
    const { pathname } = new URL(`${name}/`, site);
    select.append(new Option(title, pathname, false, pathname === here));
  }
  select.addEventListener("change", async () => {
    // Another version may lack this page.
    const same = new URL(label.dataset.page, new URL(select.value, site));
    const found = await fetch(same, { method: "HEAD" }).catch(() => null);
    location.href = found?.ok ? same : select.value;
  });
  label.hidden = false;
});
