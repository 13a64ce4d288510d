"""Drawing: what every figure and every chart of the report shares, from tables to pictures. No model.

Begin with `style.py` (how a figure is set up and saved) and `section.py` (what the report shows of a study).
`heatmap.py`, `attention.py`, `agreement.py` and `explained_effect.py` draw results that several rooms have;
`interactive.py` makes the panels of the page. The charts of one study are in `studies/STUDY/charts.py`.
May import: errors, files, registry, stats, heads.
"""
