"""Scraping of engines and proxies: `exposition` is pure, `fetch` asks over HTTP."""

from .exposition import BadPageError, EnginePage, engine_page, proxy_page
from .fetch import Scraped, Scraper, Target

__all__ = ["BadPageError", "EnginePage", "Scraped", "Scraper", "Target", "engine_page", "proxy_page"]
