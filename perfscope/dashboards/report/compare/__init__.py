"""Reports of a comparison: text, Markdown, HTML, JSON and JUnit."""
