// The page of a private study's results, which has no charts, but notes.

import { followNotes } from "/static/js/notes.js";

followNotes(() => {});
