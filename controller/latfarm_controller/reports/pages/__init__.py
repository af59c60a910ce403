"""Reports as HTML pages and SVG drawings."""
