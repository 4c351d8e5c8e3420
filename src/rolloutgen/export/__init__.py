"""The corpus as training data: transcripts become rows of JSON lines or parquet.

``segments`` says which calls make up a row and what is left out, ``rows`` what a row says.
"""

from rolloutgen.export.corpus import Corpus
from rolloutgen.export.rows import FORMATS
from rolloutgen.export.writers import write, write_lines

__all__ = ["FORMATS", "Corpus", "write", "write_lines"]
