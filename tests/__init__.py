"""The tests, by what is promised; each folder's docstring says it.

The kind is in the file's name or a mark. ``_server``: requests on a socket to a running broker;
``_client``: a client against a broker that does what the test says (``kits.client``);
``_on_apache``, ``_java``, mark ``interop``: with Apache's programs; ``_kill``, mark ``chaos``:
processes are killed; ``usefixtures("face")``: both faces of the clients, on every cluster; mark
``spark``: a real Spark. The rest decides something alone.

Besides: ``kits`` (what several share), ``plugins`` (of pytest), ``outside``, ``mutants``,
``mutation`` (who tests the tests), ``docs``, ``tidy``, ``typing``, ``wheel``, ``scripts`` and
``demo``.
"""
