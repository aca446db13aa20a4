// @ts-check
/** Invented sites. Their addresses end in `.example`, a reserved domain without owners, so no such site exists. */

/** The topics of the pages of each kind of site. */
const TOPICS = {
  news: ["Front page", "Politics", "Science", "Sport results", "Culture", "Travel", "Opinion", "Local news", "Crossword", "Weather"],
  weather: ["Weather today", "Ten day weather", "Rain radar", "Wind and waves", "Pollen", "Snow report", "Storm warnings"],
  mail: ["Inbox", "Sent mail", "Drafts", "Calendar", "Contacts", "Mail settings"],
  recipes: ["Bread without kneading", "Lentil soup", "Apple cake", "Pasta with lemon", "Pickled onions", "Weekly menu", "Rice and beans", "Pancakes", "Shopping list"],
  trains: ["Timetable", "Departures", "Tickets", "Seat reservation", "Delays", "Night trains", "Travel map"],
  shop: ["Basket", "Orders", "Offers", "Bicycle parts", "Garden tools", "Books", "Lamps", "Returns", "Rain jackets"],
  code: ["Issues", "Pull requests", "Build status", "Release notes", "Wiki", "Search the code", "Dashboard", "Review queue"],
  docs: ["Tutorial", "Reference", "Changelog", "Installation", "Examples", "Search", "Frequently asked questions"],
  forum: ["New topics", "Bicycle repair", "Garden in spring", "Film talk", "Used books", "Board games", "Rules of the forum"],
  music: ["Playlists", "New albums", "Concerts", "Radio", "Piano for beginners", "Charts"],
  bank: ["Accounts", "Transfer", "Statements", "Cards", "Exchange rates"],
  library: ["Catalogue", "My loans", "Opening hours", "New books", "Reading room", "Film evening"],
  video: ["Watch later", "Bicycle tour films", "Documentaries", "Cooking school", "Concert films", "Subscriptions"],
  sport: ["Results", "League table", "Running plan", "Swimming times", "Cup draw", "Cycling routes"],
};

/** @type {readonly (readonly [host: string, name: string, topic: keyof typeof TOPICS])[]} */
const NAMES = [
  ["morningpost.example", "Morning Post", "news"],
  ["harbourherald.example", "Harbour Herald", "news"],
  ["thevalleytimes.example", "Valley Times", "news"],
  ["nightdesk.example", "Night Desk", "news"],
  ["cloudatlas.example", "Cloud Atlas", "weather"],
  ["barometer.example", "Barometer", "weather"],
  ["weathervane.example", "Weathervane", "weather"],
  ["pigeonmail.example", "Pigeon Mail", "mail"],
  ["workmail.example", "Work Mail", "mail"],
  ["spoonful.example", "Spoonful", "recipes"],
  ["grandmaskitchen.example", "Grandma's Kitchen", "recipes"],
  ["breadandsalt.example", "Bread and Salt", "recipes"],
  ["northline.example", "North Line", "trains"],
  ["citytrams.example", "City Trams", "trains"],
  ["corner-shop.example", "Corner Shop", "shop"],
  ["allweathershop.example", "All Weather Shop", "shop"],
  ["secondhand.example", "Second Hand", "shop"],
  ["forge.example", "Forge", "code"],
  ["patchwork.example", "Patchwork", "code"],
  ["docs.lantern.example", "Lantern docs", "docs"],
  ["handbook.example", "Handbook", "docs"],
  ["learn.quill.example", "Quill guide", "docs"],
  ["sparehours.example", "Spare Hours forum", "forum"],
  ["tinkerers.example", "Tinkerers forum", "forum"],
  ["sidebyside.example", "Side by Side", "forum"],
  ["longplay.example", "Long Play", "music"],
  ["tuner.example", "Tuner", "music"],
  ["oldoakbank.example", "Old Oak Bank", "bank"],
  ["citylibrary.example", "City Library", "library"],
  ["openshelves.example", "Open Shelves", "library"],
  ["slowfilms.example", "Slow Films", "video"],
  ["lookout.example", "Lookout", "video"],
  ["secondhalf.example", "Second Half", "sport"],
  ["slowlane.example", "Slow Lane", "sport"],
];

/**
 * All pages that a history can contain.
 *
 * @type {readonly { url: string, title: string }[]}
 */
export const PLACES = NAMES.flatMap(([host, name, topic]) => [
  { url: `https://${host}/`, title: name },
  ...TOPICS[topic].map((title) => ({ url: `https://${host}/${slug(title)}`, title: `${title} – ${name}` })),
]);

/** Words to start with, which find pages on several sites. */
export const WORDS = ["weather", "bicycle", "books", "travel", "film", "garden", "results"];

/** @param {string} title */
function slug(title) {
  return title.toLowerCase().replaceAll(" ", "-");
}
