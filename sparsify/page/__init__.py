"""Report pages: one HTML file with text, tables and pictures, that loads nothing.

In: `write(Page(title="GCN", ...), "report.html")`. Out: the file. The room knows no models and no tensors: `contents`
says what a page is made of, `drawings` makes the pictures, `page.html.jinja` puts all together.
"""
