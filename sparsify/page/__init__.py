"""Report pages: one self-contained HTML file with text, tables and pictures.

In: `write(Page(title="GCN", ...), "report.html")`. Out: the file. The package is independent of models and tensors:
`contents` defines the parts of a page, `drawings` makes the pictures, `page.html.jinja` is the template.
"""
