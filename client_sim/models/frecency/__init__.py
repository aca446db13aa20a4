"""The full frecency of 2018: what it reads like (`reference`), how it is computed at speed, its smooth formula."""
