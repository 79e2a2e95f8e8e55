"""Promise: where groups are: no commit passes an unfinished message, none is lost."""
