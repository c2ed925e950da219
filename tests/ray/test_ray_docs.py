"""Snippets of the documents that start Ray."""

import pytest
from snippets import PAGES, name_of, uses_ray


@pytest.mark.parametrize("path", [*filter(uses_ray, PAGES)], ids=name_of)
def test_snippets_run_and_print_what_the_page_shows(path, run_page):
    run_page(path)
