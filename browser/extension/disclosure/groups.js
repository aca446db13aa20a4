// @ts-check
/** The words for messages, shared with the demo page. In the packed folder that file itself is in this one's place. */

export * from "../../disclosure/groups.js";
