/**
 * A shop in React: the list is ranked once for what was found, and knows the rest itself.
 *
 * `key` finds a product again that React code has copied. Ranking twice, as StrictMode does, is harmless: a list from which nothing
 * is chosen sends nothing.
 */

import { StrictMode, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";
import { Ranker } from "fedping/ranker";

const root = document.getElementById("shop");
const shop = new Ranker({
  ingest: root.dataset.ingest,
  study: "shop",
  key: (product) => product.id,
  onTrouble: ({ code, sentence }) => console.warn(code, sentence),
});

/** @param {{ found: { id: number, title: string }[] }} props */
function Products({ found }) {
  const list = useMemo(() => shop.rank(found, { device: "phone" }, 10), [found]);
  const [taken, setTaken] = useState(null);
  const take = (product) => {
    if (list.choose(product, { basket: true })) {
      setTaken(product);
    }
  };
  return (
    <>
      <ol>
        {list.items.map((product) => (
          <li key={product.id}>
            <button onClick={() => take({ ...product })}>{product.title}</button>
          </li>
        ))}
      </ol>
      {taken && <button onClick={() => list.outcome({ paid: taken.price })}>Pay for {taken.title}</button>}
    </>
  );
}

await shop.ready;
const found = await (await fetch("products.json")).json();
createRoot(root).render(<StrictMode><Products found={found} /></StrictMode>);
