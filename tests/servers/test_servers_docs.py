"""Snippets of the documents that start servers."""

import pytest
from snippets import PAGES, name_of, uses_servers


@pytest.mark.parametrize("path", [*filter(uses_servers, PAGES)], ids=name_of)
def test_snippets_run_and_print_what_the_page_shows(path, run_page):
    run_page(path)
