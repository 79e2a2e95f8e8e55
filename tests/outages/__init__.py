"""Promise: servers go away and come back; clients go on by themselves."""
