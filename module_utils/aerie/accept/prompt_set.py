"""The prompts that ship with `sglang_accept_rate`: ordinary requests of the kinds that a chat server gets.

They were written for this project, so nothing has to be downloaded and no licence is in the way. What
matters for an accept length is that they are natural (a random or empty prompt makes models loop, and a loop
is accepted at any wiring), that they differ in kind (prose, code, sums, lists, other languages: drafts
differ widely between them), and that they never change silently: figures of two runs can be compared only
over the same set. The result therefore carries the set's hash.
"""

from __future__ import annotations

DEFAULT_PROMPTS: tuple[str, ...] = (
    "Explain to a new colleague why a database transaction can deadlock, and what to do about it.",
    "Write a Python function that merges two sorted lists into one sorted list, with a short docstring",
    "A train leaves at 14:35 and arrives at 17:20. How long is the journey, in minutes? Show your steps.",
    "Summarise the causes of the French Revolution in one paragraph",
    "What is the difference between a mutex and a semaphore?",
    "Draft a polite e-mail to a customer whose delivery will be two days late",
    "List five things to check when a web server answers slowly, with one sentence about each:",
    "Tell me a short story about a lighthouse keeper who finds a letter in a bottle.",
    "How do vaccines teach the immune system to recognise a virus?",
    "Translate into German and explain the word order: I have not seen him since last summer",
    "Write a SQL query that returns the three customers with the highest total order value in 2023.",
    "A rectangle is 3 cm longer than it is wide and has an area of 70 square centimetres. Find its sides",
    "Why is the sky blue during the day and red at sunset?",
    "Give me a simple recipe for lentil soup with quantities for four people",
    "Describe how TCP congestion control reacts to a lost packet.",
    "What should a small company think about before it moves its mail server into the cloud?",
    "Write a bash script that deletes log files older than thirty days and says how much space it freed",
    "Explain what a derivative is to someone who knows only school algebra.",
    "Compare electric cars and petrol cars over ten years of use, as a table",
    "Who was Ada Lovelace, and what did she see in the Analytical Engine that others did not?",
    "请用简单的语言解释什么是光合作用。",
    "Rédige un court paragraphe sur les avantages et les inconvénients du télétravail",
    "Review this code and name its bug: def mean(xs): return sum(xs) / len(xs) if xs else 0 / 0",
    "Plan a three-day visit to Lisbon for a family with two small children.",
    "How does a hash table resolve collisions? Name two ways and their costs",
    "Write a cover letter for a junior nurse who applies to a children's hospital.",
    "What happens in the body during the first hour of fasting, and what after a day?",
    "Solve for x: 2x + 7 = 3(x - 4). Explain each step",
    "Explain the idea of opportunity cost with an example from everyday life.",
    "Write unit tests in Python for a function slugify(text) that makes a title into a URL part",
    "What are the main differences between the treaties of Westphalia and Versailles?",
    "Give three arguments for and three against a four-day working week:",
    "How would you explain recursion to a ten-year-old?",
    "A bag holds 4 red, 5 blue and 6 green marbles. What is the chance of drawing two green ones in a row?",
    "Write a product description for a wooden desk lamp, in about eighty words",
    "What does the HTTP status code 429 mean, and how should a client react to it?",
    "Describe the water cycle in six numbered steps.",
    "Turn this into a formal sentence: we can't make it on Friday cause the boss is ill",
    "Write a JavaScript function that groups an array of objects by a given key, and show how to call it",
    "Which habits help most to sleep well, and what is known about why they work?",
)
