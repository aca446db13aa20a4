// @ts-check
/**
 * Clients that take part in a study of a running ingest, for tests in Python:
 *
 *     node browser/tests/drive.js '{"ingest": "http://…", "study": "…", "clients": 20, "mode": "cors", "seconds": 20}'
 *
 * Prints what each client sent and what became of it, as JSON; with each ping the update before the links.
 */

import { Backoff, Client, browserEnvironment, learned, memoryStorage } from "../fedping.js";
import { drawPage, seeded } from "./support.js";

const { ingest, study, clients, mode, seconds } = JSON.parse(process.argv[2]);
const backoff = new Backoff({ first: 0.05, longest: 0.5 });

/** @param {number} seed */
async function takePart(seed) {
  const draw = seeded(seed);
  const environment = { ...browserEnvironment(), randomBytes: draw.bytes };
  const client = new Client({ ingest, study, storage: memoryStorage(), mode, backoff, environment });
  await client.start();
  const sent = [];
  for (const chosen of [0, 3, -1]) {
    const pages = Array.from({ length: 12 }, () => drawPage(draw, environment.now()));
    const shown = client.rank(pages, 6);
    const reported = client.report(shown, { chosen, charactersTyped: draw.whole(1, 9), enter: chosen === 0 });
    sent.push(reported && { ...reported, learned: learned(shown, chosen).update });
  }
  await client.deliver(); // what belongs to a private line is counted before it waits
  await untilDelivered(client);
  client.stop();
  return { arm: client.arm, counts: client.counts, sent: sent.filter((each) => each !== null) };
}

/** @param {Client} client */
async function untilDelivered(client) {
  const end = Date.now() + 1000 * seconds;
  while (client.counts.waiting > 0 && Date.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const done = await Promise.all(Array.from({ length: clients }, (_, i) => takePart(1 + i)));
process.stdout.write(JSON.stringify(done));
