"""User-level private federated optimisation: many users on one machine, honest promises, honest costs.

    import quoron

    columns = quoron.Columns(numeric={"age": (0, 100)}, categorical={"ward": ["north", "south"]})
    trained = quoron.train(visits, user="patient", label="ill", columns=columns, epsilon=2.0)
    trained.model.predict(new_visits)
    quoron.load("runs/visits-1").predict(new_visits)  # elsewhere, later
    quoron.evaluate("runs/visits-1", new_visits, user="patient", epsilon=0.5)  # how good it is for others
    quoron.tune(visits, user="patient", label="ill", epsilon=2.0)  # with the best of several settings

    quoron.mean(days, epsilon=1.0, bound=1000.0).value  # of numbers, a row a user
    quoron.train_rows(gradients, users=100_000, dimension=50, epsilon=2.0, delta=1e-6, radius=10.0)  # your own

    quoron.simulate("quickstart", epsilon=2.0).summary  # what it would reach, on made-up or shipped users
    quoron.compare("scorecard", seeds=3)  # every method there, with intervals
    quoron.plan("flights").plan.guarantee  # what a run would promise, before any data is touched

What is imported here is public; everything else may change.
"""

from quoron_privacy.kernels.on_first_use import public_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
