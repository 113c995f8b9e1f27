"""User-level private federated optimisation: many users on one machine, honest promises, honest costs.

    import quoron

    trained = quoron.train(visits, user="patient", label="ill", numeric={"age": (0, 100)}, epsilon=2.0)
    trained.model.predict(new_visits)

    run = quoron.simulate("quickstart", epsilon=2.0)
    print(run.summary)

What is imported here is public; everything else may change.
"""

import lazy_loader

__version__ = "0.1.0"

# The public names and their homes stand in __init__.pyi; a module is imported when one of its names is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
