"""The three papers: presets, tables, figures and theorems, as a plug-in like anybody's."""
