"""The dashboard: a Dash app with its server, pages, views and timeline."""
