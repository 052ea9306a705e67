"""How the site is built: `make docs` writes it to out/docs, without the network."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fairsched"
author = "the fairsched authors"
version = release = installed("fairsched")
extensions = [
    "api",
    "commands",
    "complete",
    "cards",
    "fields",
    "measured",
    "prometheus",
    "results",
    "theorems",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
]
exclude_patterns = ["plots/*.py", "_ext"]
source_suffix = {".md": "markdown"}
default_role = "code"  # docstrings mark code by single backticks
html_show_copyright = False

html_theme = "furo"
html_title = "fairsched"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["results.js"]
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90
add_module_names = False
autodoc_member_order = "bysource"
