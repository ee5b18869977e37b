"""What the pictures of a comparison consist of: one panel, one file; `look` is how they all look."""

from autobyte.errors import require

require("matplotlib", extra="plot", what="a picture, and a page that shows one,")
