"""The console: web pages on what requests met, what policies do, and what would change. A process and port of its own.

    app         the routes, the headers of every reply, error pages      access    who may see it
    render      a view's data as HTML, or as JSON                        assets    the style sheet and the script
    filters     which requests a page is about, from and to its URL
    timeline    a request on a time axis                                 server       uvicorn, for one archive
    views/      one module per page: plain data from the archive         templates/   that data as HTML
    svg/        drawings, made here: they need no script                 static/      our script and style, vendored

A page is a URL: every filter, selection and open panel stands in it, its data is at the same path with `.json`, and
it works without JavaScript. Data comes from the archive's files and the store's streams, never from a gateway worker.
"""
