"""Charts: each defined once, drawn on paper and on the page. No model.

Begin with `chart.py` (what a chart is). `static.py` draws a chart with matplotlib (PNG, SVG, PDF, `.plot()`),
`interactive.py` writes it as Plotly's JSON for the report. `style.py` says how figures look and saves them,
`words.py` what things are called, `section.py` what a study adds to the report. `heatmap.py`, `attention.py`,
`comparison.py` and `explained_effect.py` define charts that several rooms have; those of one study are in
`studies/STUDY/section.py`. May import: errors, files, registry, stats, tables.
"""
